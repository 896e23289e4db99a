"""When a card leaves service, what happens to its task, and every step of its way back."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, gpu, gpus_of, node, run_pass, task, tried
from dgpu.core.commands import (
    ChangeInventory,
    LoseNode,
    ObserveGpu,
    RecoverGpu,
    RemoveNode,
    ReportCheck,
    ReportStarted,
    Tick,
)
from dgpu.core.digest import digest
from dgpu.core.events import Event, GpuBlamed, GpuHealthChanged, TaskRequeued, TaskStopRequested
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.health import Health, HealthRules
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.rejections import GpuInService, StaleCheck, UnknownGpu
from dgpu.core.state import ClusterState, gpu_status, next_tick_at

CARD = "GPU-n1-0"
RULES = HealthRules(
    cool_down_ms=1_000,
    give_up_ms=20_000,
    check_timeout_ms=2_000,
    parole_ms=50_000,
    parole_runs=2,
    max_quarantines=2,
    window_ms=100_000,
)
SETTINGS = Settings(health=RULES)


def one_card(*steps, gpus: int = 1) -> ClusterState:
    return cluster(node("n1", gpus=gpus), *steps, settings=SETTINGS)


def fault(words: str = "Xid 79: off the bus", cause: str = "xid", card: str = CARD) -> ObserveGpu:
    return ObserveGpu(gpu_id=card, foreign_mb=0, fault=words, fault_cause=cause)


def well(card: str = CARD) -> ObserveGpu:
    return ObserveGpu(gpu_id=card, foreign_mb=0)


def checked(number: int = 1, *, ok: bool = True, evidence: str = "the driver answers") -> ReportCheck:
    return ReportCheck(gpu_id=CARD, number=number, ok=ok, evidence=evidence)


def tick_when_due(state: ClusterState) -> tuple[Event, ...]:
    at = next_tick_at(state)
    assert at is not None, "nothing is due"
    return do(state, Tick(), at=at)


def health(state: ClusterState, card: str = CARD) -> Health:
    assert card not in state.gpus or state.gpus[card].health is state.health[card].state
    return state.health[card].state


def on_parole(*steps) -> ClusterState:
    state = one_card(*steps)
    do(state, fault())
    do(state, well())
    tick_when_due(state)
    do(state, checked())
    assert health(state) is Health.PAROLE
    return state


# a card falls ill


@pytest.mark.parametrize("cause", ["lost", "xid", "ecc", "hot", "fault", "a word of a later agent"])
def test_a_fault_takes_a_card_out_of_service_with_its_evidence(cause: str) -> None:
    state = one_card()
    events = do(state, fault("what the probe said", cause))
    step = events[-1]
    assert isinstance(step, GpuHealthChanged)
    assert (step.before, step.after, step.evidence) == (
        Health.TRUSTED,
        Health.QUARANTINED,
        "what the probe said",
    )
    assert gpu_status(state, state.gpus[CARD]) is GpuStatus.ERROR
    assert state.gpu_counts()[GpuStatus.ERROR] == 1, "out of what quotas count"
    do(state, task(priority=10))
    assert run_pass(state) == []


def test_its_task_is_stopped_and_its_end_counts_as_a_failure_of_ours() -> None:
    state = one_card(task(max_retries=1))
    run_pass(state)
    do(state, ReportStarted(lease_id=1))
    events = do(state, fault())
    assert events[-1] == TaskStopRequested(
        at=state.last_at,
        task_id=1,
        lease_id=1,
        reason="gpu_fault",
        error=f"GPU {CARD} is out of service: Xid 79: off the bus",
    )
    assert state.tasks[1].status is TaskStatus.RUNNING, "until its end is certain"
    (again,) = do(state, finished(1, outcome=Outcome.STOPPED))
    assert isinstance(again, TaskRequeued)
    assert (again.reason, again.counted) == ("gpu_fault", True)
    assert "Xid 79" in again.error
    do(state, node("n2", gpus=1))
    assert run_pass(state, at=again.eligible_at) == [1]
    assert state.tasks[1].node_id == "n2"


def test_a_task_without_retries_left_fails_as_infrastructure() -> None:
    state = one_card(task(max_retries=0))
    run_pass(state)
    do(state, fault())
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=9))
    assert (state.tasks[1].status, state.tasks[1].reason) == (TaskStatus.FAILED, "infrastructure")


def test_a_task_that_ended_well_all_the_same_has_succeeded() -> None:
    state = one_card(task())
    run_pass(state)
    do(state, fault())
    do(state, finished(1))
    assert state.tasks[1].status is TaskStatus.SUCCESS


def test_an_allocation_on_it_waits_again_at_once() -> None:
    state = one_card(task(allocation=True))
    run_pass(state)
    do(state, fault())
    assert state.tasks[1].status is TaskStatus.PENDING
    check_invariants(state)


def test_two_cards_of_one_task_that_fall_ill_together_stop_it_once() -> None:
    state = one_card(task(2, allocation=True), gpus=2)
    run_pass(state)
    sick = tuple(gpu(f"GPU-n1-{i}", index=i, fault="Xid 79", fault_cause="xid") for i in range(2))
    events = do(state, ChangeInventory(node_id="n1", gpus=sick))
    assert sum(isinstance(event, TaskRequeued) for event in events) == 1
    check_invariants(state)


def test_a_card_that_its_node_no_longer_lists_comes_back_by_the_same_way() -> None:
    state = one_card(gpus=2)
    do(state, ChangeInventory(node_id="n1", gpus=gpus_of("n1", 2)[1:]))
    assert CARD not in state.gpus
    assert next_tick_at(state) is None, "nothing to do about a card that is not there"
    do(state, ChangeInventory(node_id="n1", gpus=gpus_of("n1", 2)))
    assert (health(state), state.health[CARD].cause) == (Health.QUARANTINED, "lost")
    (step,) = tick_when_due(state)
    assert isinstance(step, GpuHealthChanged)
    assert step.after is Health.PROBING


def test_a_second_fault_of_a_card_that_is_out_changes_only_what_is_observed() -> None:
    state = one_card()
    do(state, fault())
    events = do(state, fault("Xid 48", "xid"))
    assert not any(isinstance(event, GpuHealthChanged) for event in events)


# the way back


def test_a_lasting_fault_is_waited_for_and_then_asks_for_a_person() -> None:
    state = one_card()
    do(state, fault("the card is lost", "lost"))
    assert next_tick_at(state) == state.last_at + RULES.give_up_ms
    (step,) = tick_when_due(state)
    assert isinstance(step, GpuHealthChanged)
    assert (step.after, step.cause) == (Health.OUT, "lost")
    assert "the card is lost" in step.evidence
    do(state, well())
    assert next_tick_at(state) is None, "only a person brings it back"


def test_the_check_comes_when_the_fault_has_been_gone_for_a_while() -> None:
    state = one_card()
    do(state, fault("the card is lost", "lost"))
    do(state, Tick(), at=state.last_at + 5_000)
    do(state, well())
    assert next_tick_at(state) == state.last_at + RULES.cool_down_ms
    do(state, task(priority=10))
    assert run_pass(state) == [], "the fault is gone, the quarantine is not"
    tick_when_due(state)
    assert health(state) is Health.PROBING
    assert gpu_status(state, state.gpus[CARD]) is GpuStatus.ERROR
    assert run_pass(state) == []


def test_a_fault_of_a_moment_need_not_be_taken_back_before_the_check() -> None:
    """An agent tells of an Xid until it is asked to check the card."""
    state = one_card()
    do(state, fault("Xid 79", "xid"))
    tick_when_due(state)
    assert health(state) is Health.PROBING
    do(state, checked())
    assert health(state) is Health.PAROLE


def test_no_check_while_the_task_is_still_ending() -> None:
    state = one_card(task())
    run_pass(state)
    do(state, fault())
    assert next_tick_at(state) is None
    much_later = state.last_at + 10 * RULES.cool_down_ms
    do(state, Tick(), at=much_later)
    assert health(state) is Health.QUARANTINED
    do(state, finished(1, outcome=Outcome.STOPPED), at=much_later + 1)
    do(state, Tick(), at=much_later + 2)
    assert health(state) is Health.PROBING


def test_a_check_that_fails_is_a_quarantine_of_its_own_and_the_last_one_needs_a_person() -> None:
    state = one_card()
    do(state, fault())
    for number in (1, 2):
        tick_when_due(state)
        do(state, checked(number, ok=False, evidence="cuInit failed"))
        assert health(state) is Health.QUARANTINED
    (step,) = tick_when_due(state)
    assert isinstance(step, GpuHealthChanged)
    assert step.after is Health.OUT
    assert "3 times" in step.evidence
    assert "cuInit failed" in step.evidence


def test_a_check_without_an_answer_has_failed_but_not_while_its_node_is_away() -> None:
    state = one_card()
    do(state, fault())
    tick_when_due(state)
    do(state, LoseNode(node_id="n1", reason="silent"))
    do(state, Tick(), at=state.last_at + 60_000)
    assert health(state) is Health.PROBING
    do(state, node("n1", gpus=1))
    assert next_tick_at(state) == state.last_at + RULES.check_timeout_ms, "it is asked again"
    tick_when_due(state)
    assert (health(state), state.health[CARD].cause) == (Health.QUARANTINED, "check")


def test_an_answer_to_an_old_check_is_stale() -> None:
    state = one_card()
    do(state, fault())
    tick_when_due(state)
    do(state, checked(1, ok=False))
    assert tried(state, checked(1)) == StaleCheck(gpu_id=CARD, number=1)
    tick_when_due(state)
    assert tried(state, checked(1)) == StaleCheck(gpu_id=CARD, number=1)
    do(state, checked(2))
    assert health(state) is Health.PAROLE


def test_on_parole_it_takes_tasks_below_normal_priority_only() -> None:
    state = on_parole(task(priority=50), task(priority=49))
    assert run_pass(state) == [2]


def test_good_runs_end_the_parole() -> None:
    state = on_parole(task(priority=10, count=2), task(priority=50))
    run_pass(state)
    do(state, finished(1))
    assert (health(state), state.health[CARD].good_runs) == (Health.PAROLE, 1)
    run_pass(state)
    events = do(state, finished(2))
    assert any(isinstance(event, GpuHealthChanged) and event.cause == "good_runs" for event in events)
    assert health(state) is Health.TRUSTED
    assert run_pass(state) == [3]


def test_time_ends_the_parole_and_lets_the_waiting_in() -> None:
    state = on_parole(task(priority=50))
    assert run_pass(state) == []
    tick_when_due(state)
    assert health(state) is Health.TRUSTED
    assert run_pass(state) == [1]


def test_a_fault_on_parole_is_a_quarantine_again() -> None:
    state = on_parole()
    do(state, fault("Xid 79, the second", "xid"))
    assert (health(state), state.health[CARD].quarantines) == (Health.QUARANTINED, 2)


def test_quarantines_outside_the_window_do_not_count() -> None:
    state = on_parole()
    do(state, Tick(), at=state.last_at + RULES.window_ms)
    do(state, fault("Xid 79, much later", "xid"))
    assert state.health[CARD].quarantines == 1


def test_an_operator_brings_a_card_to_its_check_and_wipes_the_slate() -> None:
    state = one_card()
    do(state, fault("the card is lost", "lost"))
    tick_when_due(state)
    do(state, well())
    assert health(state) is Health.OUT
    (step,) = do(state, RecoverGpu(gpu_id=CARD, reason="reseated"))
    assert isinstance(step, GpuHealthChanged)
    assert (step.after, step.cause, step.evidence, step.quarantines) == (
        Health.PROBING,
        "operator",
        "reseated",
        0,
    )
    assert do(state, RecoverGpu(gpu_id=CARD)) == (), "it is on its way already"


def test_a_card_in_service_or_unknown_cannot_be_recovered() -> None:
    state = one_card()
    assert tried(state, RecoverGpu(gpu_id=CARD)) == GpuInService(gpu_id=CARD, state="trusted")
    assert tried(state, RecoverGpu(gpu_id="nobody")) == UnknownGpu(gpu_id="nobody")


def test_the_past_of_a_card_goes_with_its_node() -> None:
    state = one_card()
    do(state, fault())
    do(state, LoseNode(node_id="n1", reason="sold"))
    do(state, RemoveNode(node_id="n1"))
    assert not state.health


def test_a_state_without_such_cards_has_the_digest_it_always_had() -> None:
    """A part that is empty leaves no trace."""
    state = one_card()
    before = digest(state)
    assert not state.health
    do(state, fault())
    assert digest(state) != before


# failures of tasks


def fails(state: ClusterState, number: int, *, exit_code: int = 1, **more) -> tuple[Event, ...]:
    """Submits, places on the first card, and fails."""
    do(state, task(**more))
    assert run_pass(state) == [number]
    return do(state, finished(number, exit_code=exit_code))


def succeeds_elsewhere(state: ClusterState, number: int, tenant: str) -> None:
    do(state, node("n0", gpus=(gpu("GPU-n0-0", on="n0", memory_mb=32_768),)))
    do(state, task(tenant=tenant, memory_mb=20_000))
    assert run_pass(state) == [number]
    do(state, finished(number))
    do(state, LoseNode(node_id="n0", reason="off"))


def test_different_programs_that_fail_in_a_row_speak_against_the_card() -> None:
    state = one_card()
    fails(state, 1, command="python a.py", tenant="ann")
    fails(state, 2, command="python b.py", tenant="bob")
    succeeds_elsewhere(state, 3, "ann")
    succeeds_elsewhere(state, 4, "bob")
    events = fails(state, 5, command="./c --fast", tenant="ann", max_retries=1)
    step = next(event for event in events if isinstance(event, GpuHealthChanged))
    assert (step.after, step.cause) == (Health.QUARANTINED, "failures")
    for told in ("task-1 (python a.py)", "task-2 (python b.py)", "task-5 (./c)"):
        assert told in step.evidence
    ended = events[-1]
    assert isinstance(ended, TaskRequeued)
    assert (ended.reason, ".py" in ended.error) == ("gpu_fault", False), "tried elsewhere; no names of others"


def test_a_hundred_broken_tasks_of_one_user_take_no_card_out() -> None:
    state = one_card()
    for number in range(1, 101):
        fails(state, number, command=f"python train{number}.py", tenant="ann")
    assert health(state) is Health.TRUSTED
    assert len(state.health[CARD].blames) == RULES.failures_in_a_row


def test_a_sweep_of_one_program_is_one_failure() -> None:
    state = one_card()
    for number in range(1, 4):
        succeeds = fails(state, number, command=f"python train.py --lr 0.{number}")
        assert sum(isinstance(event, GpuBlamed) for event in succeeds) == (number == 1)


def test_a_success_in_between_clears_the_card() -> None:
    state = one_card()
    fails(state, 1, command="a")
    fails(state, 2, command="b")
    fails(state, 3, command="true", exit_code=0)
    assert state.health[CARD].blames == ()


@pytest.mark.parametrize(
    "report",
    [
        {"exit_code": 127},
        {"exit_code": 126},
        {"outcome": Outcome.SIGNALED, "signal": 9},
        {"outcome": Outcome.SIGNALED, "signal": 15},
        {"outcome": Outcome.TIMEOUT},
        {"outcome": Outcome.CANNOT_START},
    ],
)
def test_ends_that_say_nothing_about_the_card(report) -> None:
    state = one_card(task())
    run_pass(state)
    do(state, finished(1, **report))
    assert not state.health


def test_with_several_cards_nobody_knows_which_it_was() -> None:
    state = one_card(task(2), gpus=2)
    run_pass(state)
    do(state, finished(1, exit_code=1))
    assert not state.health


# why


def test_why_says_in_which_state_of_health_the_cards_are() -> None:
    state = on_parole(task(), task())
    do(state, node("n2", gpus=2))
    do(state, fault("Xid 79", "xid", card="GPU-n2-0"))
    do(state, fault("Xid 79", "xid", card="GPU-n2-1"))
    told = explain(state, 1, state.last_at)
    assert isinstance(told, Explanation)
    (blocker,) = told.blockers
    assert blocker.code == "gpu_health"
    assert blocker.numbers == {"quarantined": 2, "parole": 1}
    assert blocker.detail == (
        "2 GPUs are quarantined, 1 GPU on parole takes only tasks below normal priority"
    )
