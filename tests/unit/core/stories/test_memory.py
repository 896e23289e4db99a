"""How memory is promised, and what runs teach about it."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, gpu, lease, node, run_pass, spec, task, tried
from dgpu.core.commands import ObserveGpu, ReportStarted, SubmitTasks
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Restart, TaskDetail, TaskStatus
from dgpu.core.rejections import NeverFits
from dgpu.core.rules.estimate import estimate, with_estimate
from dgpu.core.state import ClusterState

MARGIN = Settings()  # 2,000 MB
MINUTE_MS = 60_000


def oom(lease_id: int):
    return finished(lease_id, exit_code=1, outcome=Outcome.OUT_OF_MEMORY, error="CUDA out of memory")


def demand_mb(state: ClusterState, task_id: int) -> int:
    return state.shapes[state.tasks[task_id].shape_id].gpu_memory_mb


def test_a_margin_is_never_promised() -> None:
    state = cluster(node("n1", memory_mb=16_384), settings=MARGIN)
    refused = tried(state, task(memory_mb=14_592))
    assert refused == NeverFits(entry=0, lacks="gpu_memory_mb", requested=14_592, largest=14_384)
    do(state, task(memory_mb=14_336))
    assert run_pass(state) == [1]


def test_a_task_that_says_nothing_only_needs_an_idle_card() -> None:
    """Even one smaller than the margin, or mostly used by others: nobody knows what it needs."""
    state = cluster(node("n1", memory_mb=1_024), task(), settings=MARGIN)
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=900))
    assert run_pass(state) == [1]


def test_foreign_memory_and_the_margin_add_up() -> None:
    state = cluster(node("n1", memory_mb=16_384), task(memory_mb=12_288), settings=MARGIN)
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=2_304))
    assert run_pass(state) == []
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=2_048))
    assert run_pass(state) == [1]


def test_a_model_is_estimated_by_the_formula() -> None:
    """(4,000 + 2 x 500) MB, times the task type's factor, in steps of 256."""
    state = cluster(node("n1", memory_mb=81_920))
    do(
        state,
        SubmitTasks(entries=((1, spec(model="m")), (1, spec(model="m", task_type="stability", atoms=1_000)))),
    )
    assert (demand_mb(state, 1), demand_mb(state, 2)) == (5_120, 9_216)
    assert do(state, task()) and demand_mb(state, 3) == 0
    assert do(state, task(model="m", memory_mb=1_024)) and demand_mb(state, 4) == 1_024
    assert do(state, task(model="m", atoms=30_010)) and demand_mb(state, 5) == 64_256


def test_out_of_memory_is_learned_and_tried_again_with_more() -> None:
    state = cluster(node("n1", gpus=2, memory_mb=24_576), task(model="m"))
    run_pass(state)
    do(state, oom(1))
    again = state.tasks[1]
    assert (again.status, again.reason, again.retries) == (TaskStatus.PENDING, "out_of_memory", 1)
    assert again.error == "ran out of GPU memory: CUDA out of memory; tried again with 6144 MB"
    known = state.estimates["default/model/m"]
    assert (known.base_mb, known.ooms, known.runs) == (4_800, 1, 0)
    assert demand_mb(state, 1) == 6_144
    assert run_pass(state) == [1]
    # A second time in spite of more: it is over. The next task of the model starts from what was learned.
    do(state, oom(2))
    over = state.tasks[1]
    assert (over.status, over.reason) == (TaskStatus.FAILED, "out_of_memory")
    assert over.error.endswith("more memory did not help")
    do(state, task(model="m"))
    assert (
        demand_mb(state, 2) == with_estimate(state, spec(model="m")).shape.gpu_memory_mb == 6_912
    )  # 5,760 + 1,000


def test_one_tenants_lesson_is_not_anothers() -> None:
    state = cluster(node("n1", memory_mb=24_576), task(model="m"))
    run_pass(state)
    do(state, oom(1))
    do(state, task(model="m", tenant="b"))
    assert demand_mb(state, 2) == 5_120


def test_a_command_without_a_model_is_learned_too() -> None:
    state = cluster(
        node("n1", gpus=(gpu("small", memory_mb=16_384), gpu("large", index=1, memory_mb=81_920)))
    )
    do(state, task(command="python big.py"))
    lease(1, on="n1")(state)
    assert state.tasks[1].gpu_ids == ("large",) or state.tasks[1].gpu_ids == ("small",)
    do(state, oom(1))
    (known,) = state.estimates.values()
    held = state.gpus[state.tasks[1].gpu_ids[0] if state.tasks[1].gpu_ids else "large"].memory_mb
    assert known.command == "python big.py"
    assert known.base_mb == min(held * 6 // 5, 81_920)


def test_without_retries_it_fails_but_the_lesson_stays() -> None:
    state = cluster(node("n1", memory_mb=24_576), task(model="m", max_retries=0))
    run_pass(state)
    do(state, oom(1))
    assert state.tasks[1].status is TaskStatus.FAILED
    assert state.tasks[1].exit_code == 1
    assert state.estimates["default/model/m"].base_mb == 4_800


def test_more_than_the_largest_card_is_not_asked_for() -> None:
    state = cluster(node("n1", memory_mb=5_120), task(model="m"))
    run_pass(state)
    do(state, oom(1))
    assert state.tasks[1].status is TaskStatus.FAILED
    assert state.tasks[1].error.endswith("no GPU has more")


def test_peaks_raise_at_once_and_lower_slowly() -> None:
    state = cluster(node("n1", memory_mb=24_576))

    def ran(peak_mb: int, ms: int = MINUTE_MS) -> int:
        do(state, task(model="m"))
        run_pass(state)
        lease_id = state.next_lease_id - 1
        do(state, ReportStarted(lease_id=lease_id))
        do(state, finished(lease_id, peak_memory_mb=peak_mb), at=state.last_at + ms)
        return estimate(state, "default", TaskDetail(model_name="m")).base_mb

    assert ran(9_000) == 8_000  # 1,000 of it are atoms
    assert ran(1_000) == 7_000
    assert ran(1_000, ms=1_000) == 7_000  # too short to have shown its peak
    assert ran(1_000) == 6_125
    assert state.estimates["default/model/m"].runs == 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["reports first", "reports last"])
def test_a_gang_that_runs_out_of_memory_is_tried_again_with_more(order: tuple[int, int]) -> None:
    """Whichever rank reports last: the first failure is the one that counts."""
    nodes = [node(name, gpus=1, memory_mb=24_576) for name in ("n1", "n2")]
    state = cluster(*nodes, task(model="m", nodes=2))
    assert run_pass(state) == [1]
    ranks = state.gangs[1].leases
    reports = [oom(ranks[0]), finished(ranks[1], outcome=Outcome.STOPPED)]
    if order == (1, 0):
        reports = [finished(ranks[1]), oom(ranks[0])]
    for report in reports:
        do(state, report)
    again = state.tasks[1]
    assert (again.status, again.reason, again.retries) == (TaskStatus.PENDING, "out_of_memory", 1)
    assert demand_mb(state, 1) == 6_144
    assert state.estimates["default/model/m"].ooms == 1
    check_invariants(state)
    assert run_pass(state) == [1]


def test_a_service_that_ran_out_of_memory_is_restarted_with_more() -> None:
    """It is restarted in any case. With as much as before it would run out again, and again."""
    state = cluster(node("n1", memory_mb=16_384), task(memory_mb=4_096, restart=Restart.ON_FAILURE))
    run_pass(state)
    do(state, oom(1))
    assert state.tasks[1].status is TaskStatus.PENDING
    assert demand_mb(state, 1) > 4_096
