"""Cards whose memory a task did not release: only these are left alone, and a fault that is known stays as it is."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass, task
from dgpu.core.commands import ObserveGpu
from dgpu.core.events import ObservationChanged, TaskStopRequested
from dgpu.core.model.node import GpuStatus
from dgpu.core.state import ClusterState, gpu_status

ONE, OTHER = "GPU-n1-0", "GPU-n1-1"


def on_two_cards() -> ClusterState:
    state = cluster(node("n1", gpus=2), task(2), task(1, count=2))
    run_pass(state)
    return state


def test_of_the_two_cards_of_a_task_only_the_one_it_names_is_left_alone() -> None:
    state = on_two_cards()
    events = do(state, finished(1, stuck_gpus=(OTHER,)))
    assert [event.gpu_id for event in events if isinstance(event, ObservationChanged)] == [OTHER]
    assert gpu_status(state, state.gpus[ONE]) is GpuStatus.IDLE
    assert gpu_status(state, state.gpus[OTHER]) is GpuStatus.ERROR
    assert run_pass(state) == [2]
    assert state.tasks[2].gpu_ids == (ONE,)


def test_a_card_that_the_task_does_not_hold_is_not_its_to_name() -> None:
    state = cluster(node("n1", gpus=2), task(1, count=2))
    run_pass(state)
    (mine,) = state.tasks[1].gpu_ids
    (others,) = {ONE, OTHER} - {mine}
    events = do(state, finished(1, stuck_gpus=(others,)))
    assert not [event for event in events if isinstance(event, ObservationChanged)]
    assert not state.gpus[others].fault


def test_a_fault_that_is_known_already_is_not_replaced_by_that_of_a_stuck_card() -> None:
    state = on_two_cards()
    do(state, ObserveGpu(gpu_id=ONE, foreign_mb=0, fault="double bit error", fault_cause="ecc"))
    before = state.gpus[ONE]
    events = do(state, finished(1, stuck_gpus=(ONE, OTHER)))
    assert [event.gpu_id for event in events if isinstance(event, ObservationChanged)] == [OTHER]
    assert (state.gpus[ONE].fault, state.gpus[ONE].fault_cause) == (before.fault, before.fault_cause)
    assert state.gpus[OTHER].fault == "memory not released by task-1"


def test_a_fault_stops_the_task_on_that_card_and_no_other_on_the_node() -> None:
    state = cluster(node("n1", gpus=2), task(1, count=2))
    run_pass(state)
    (mine,) = state.tasks[1].gpu_ids
    events = do(state, ObserveGpu(gpu_id=mine, foreign_mb=0, fault="Xid 79", fault_cause="xid"))
    assert [event.task_id for event in events if isinstance(event, TaskStopRequested)] == [1]
