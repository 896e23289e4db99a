"""Numbers at their exact bound, one resource without the other, and the facts of refusals: where a comparison that is
off by one, or one condition too many, shows.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import START, cluster, do, finished, gpu, gpus_of, node, run_pass, spec, task
from building.calls import app, call, returned, with_workers
from dgpu.core.commands import CancelTasks, RunPass, SetService
from dgpu.core.decide.submit import is_history_behind
from dgpu.core.events import TaskStopRequested, TypicalChanged
from dgpu.core.foresight.explain import explain
from dgpu.core.index.bookings import Booking
from dgpu.core.model.ids import GpuId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.reservation import Place, Reservation
from dgpu.core.model.service import ServiceSpec
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, Restart, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.refusals import NoWorker
from dgpu.core.rules.durations import UNKNOWN
from dgpu.core.rules.openings import Times, opening_in, taken_by
from dgpu.core.rules.workers import no_worker, workers_wanted
from dgpu.core.state import ClusterState

MINUTE = 60_000


# function calls


def running_call(max_retries: int = 3) -> ClusterState:
    state = with_workers(cluster(node("n1"), call(max_retries=max_retries)))
    run_pass(state)
    return state


def test_a_call_that_had_not_begun_does_not_lose_a_retry_with_its_worker() -> None:
    state = running_call(max_retries=0)
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=9))
    assert (state.tasks[1].status, state.tasks[1].retries) == (TaskStatus.PENDING, 0)


@pytest.mark.parametrize(("error", "told"), [("went away", "went away"), ("", "its worker was stopped")])
def test_a_call_whose_worker_was_stopped_waits_again_and_says_why(error: str, told: str) -> None:
    state = running_call(max_retries=0)
    do(state, CancelTasks(task_ids=(2,)))
    do(state, returned(2, outcome=Outcome.NODE_FAULT, error=error))
    assert (state.tasks[1].status, state.tasks[1].retries) == (TaskStatus.PENDING, 0)
    assert told in state.tasks[1].error


def test_the_length_of_calls_is_learned_for_ever() -> None:
    state = with_workers(cluster(node("n1"), call(app(max_workers=1), count=2)))
    run_pass(state)
    state.apps["job"] = replace(state.apps["job"], runs=1_000, run_us=1_000_000)
    do(state, returned(2, ran_ms=0))
    assert (state.apps["job"].runs, state.apps["job"].run_us) == (1_000, 875_000)


def test_the_refusal_of_a_call_without_a_worker_counts_those_that_start_and_those_that_wait() -> None:
    state = cluster(node("n1"), call(count=3))
    run_pass(state)
    found = no_worker(state, state.apps["job"])
    assert found == NoWorker(starting=1, waiting=2, failures=0, error="", eligible_at=0)


def test_an_idle_worker_gives_way_for_the_quota_of_its_pool_to_a_task_of_another_tenant() -> None:
    rules = Settings(memory_margin_mb=0, quota=Quota(online_ppm=500_000, mode=QuotaMode.STRICT))
    state = with_workers(cluster(node("n1", gpus=2), call(app(tenant="a")), settings=rules))
    run_pass(state)
    do(state, returned(2))
    do(state, task(tenant="b"))
    (stop,) = [each for each in do(state, RunPass()) if isinstance(each, TaskStopRequested)]
    assert (stop.task_id, stop.for_task, stop.reason) == (2, 3, "gave_way")


# numbers at their bound


@pytest.mark.parametrize("ended", [1, 2])
def test_the_history_is_behind_from_one_task_more_than_may_be_kept(ended: int) -> None:
    state = cluster(
        node("n1", gpus=2),
        task(count=2),
        settings=Settings(memory_margin_mb=0, keep_finished=1, max_unsaved=0),
    )
    run_pass(state)
    for lease_id in range(1, ended + 1):
        do(state, finished(lease_id))
    assert is_history_behind(state) is (ended == 2)


def test_a_node_with_exactly_the_cpus_and_ram_of_a_task_lacks_none() -> None:
    state = cluster(node("n1", cpus=4, ram_mb=2_048), task(cpus=2, ram_mb=1_024), task(cpus=2, ram_mb=1_024))
    run_pass(state)
    told = {each.code for each in explain(state.fork(), 2, state.last_at).blockers}
    assert told
    assert not told & {"cpus", "ram"}


def test_a_table_of_typical_tasks_is_not_made_again_for_one_task_more() -> None:
    state = cluster(
        node("n1"), task(count=100), settings=Settings(memory_margin_mb=0, placement=Placement.PACK)
    )
    assert any(isinstance(each, TypicalChanged) for each in do(state, RunPass()))
    do(state, task())
    assert not any(isinstance(each, TypicalChanged) for each in do(state, RunPass()))


# times that are not known


def test_cpus_that_come_free_at_an_unknown_time_count_as_one_unknown_end() -> None:
    cards = [(0, 0, GpuId("g")), (UNKNOWN, 1, GpuId("h"))]
    assert opening_in(Times(UNKNOWN, cards), 1).at == UNKNOWN + 1
    assert opening_in(Times(0, cards), 2).at == UNKNOWN + 1
    assert opening_in(Times(UNKNOWN, cards), 2).at == UNKNOWN + 2


@pytest.mark.parametrize("at", [0, START + MINUTE])
def test_a_reservation_of_unknown_time_ends_at_an_unknown_time(at: int) -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE))
    line = state.queue.line_of(state.tasks[1])
    place = Place("n1", ("GPU-n1-0",))
    booking = Booking(Reservation(task_id=1, places=(place,), at=at), line, 50)
    taken = taken_by(booking, place, START)
    assert (taken.at >= UNKNOWN, taken.until >= UNKNOWN) == (not at, not at)


# reservations


@pytest.mark.parametrize("limit", [{"max_gpus": 3}, {"max_gpu_memory_mb": 3 * 8_192}])
def test_reservations_of_a_tenant_together_stay_within_its_limit(limit: dict[str, int]) -> None:
    rules = Settings(
        memory_margin_mb=0, reservations=8, tenants=(Tenant(id="lab", **limit), Tenant(id="other"))
    )
    state = cluster(node("n1", gpus=4), task(4, tenant="other", timeout_ms=MINUTE), settings=rules)
    run_pass(state)
    do(state, task(2, count=2, tenant="lab", memory_mb=8_192, timeout_ms=MINUTE))
    run_pass(state)
    assert list(state.reservations) == [2]


@pytest.mark.parametrize("host", [{"cpus": 2}, {"ram_mb": 1_024}, {"cpus": 2, "ram_mb": 1_024}])
def test_a_task_uses_cpus_or_ram_that_a_reservation_needs_only_after_others_have_ended(
    host: dict[str, int],
) -> None:
    cards = (*gpus_of("n1", 2), gpu("small", index=2, model="T4"))
    rules = Settings(memory_margin_mb=0, reservations=1, max_timeout_ms=0)
    state = cluster(node("n1", cards, cpus=4, ram_mb=2_048), settings=rules)
    do(state, task(2, models=("V100",), timeout_ms=MINUTE, **host))
    run_pass(state)
    do(state, task(2, models=("V100",), timeout_ms=60 * MINUTE, **host))
    assert run_pass(state) == []
    assert list(state.reservations) == [2]
    do(state, task(1, models=("T4",), timeout_ms=60 * MINUTE, **host))
    assert run_pass(state) == [3]


# many nodes


def test_a_task_finds_the_one_node_of_many_that_has_its_cpus_or_none() -> None:
    nodes = [node(f"n{number:02}", gpus=2, cpus=2) for number in range(20)]
    state = cluster(*nodes, node("roomy", gpus=2, cpus=8))
    do(state, task(cpus=5, count=2))
    assert run_pass(state) == [1]
    assert state.tasks[1].node_id == "roomy"


# workers and services


@pytest.mark.parametrize(("workers", "waiting", "wanted"), [(1, 9, 0), (1, 10, 2), (2, 19, 0), (2, 20, 1)])
def test_an_app_gets_workers_once_its_waiting_calls_take_as_long_as_the_start_of_one(
    workers: int, waiting: int, wanted: int
) -> None:
    """Calls of 100 ms, and a start of a second."""
    of = app(max_workers=3)
    state = with_workers(cluster(node("n1", gpus=4), call(of, count=workers)))
    run_pass(state)
    state.apps["job"] = replace(state.apps["job"], runs=10, run_us=100_000)
    first = state.next_task_id
    do(state, call(of, count=waiting))
    assert workers_wanted(state, state.queue.line_of(state.tasks[first]), state.last_at) == wanted


def test_a_new_generation_of_a_service_begins_without_the_failures_of_the_last() -> None:
    state = cluster(node("n1"))
    serves = ServiceSpec(task=spec(restart=Restart.ALWAYS), port=80)
    do(state, SetService(tenant_id="default", name="web", spec=serves))
    (key,) = state.services
    state.services[key] = replace(state.services[key], failures=2, retry_at=START + MINUTE)
    do(
        state,
        SetService(
            tenant_id="default", name="web", spec=replace(serves, task=spec(restart=Restart.ALWAYS, cpus=1))
        ),
    )
    after = state.services[key]
    assert (after.generation, after.previous_generation, after.failures, after.retry_at) == (2, 1, 0, 0)
