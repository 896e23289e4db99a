"""From raw samples to steps and bands: said when they change, and no more often than needed."""

from __future__ import annotations

from building import cluster, do, node, run_pass, task
from dgpu.core.commands import ObserveCondition
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.state import ClusterState
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.conditions import Conditions
from dgpu.service.machine.outputs import Remark

GPU = "GPU-n1-0"


def look(conditions: Conditions, state: ClusterState, now: int, **facts) -> list[ObserveCondition | Remark]:
    told = conditions.look(state.gpus[GPU], GpuSample(at=now, **facts), now)
    for each in told:
        if isinstance(each, ObserveCondition):
            do(state, each)
    return told


def test_a_band_is_said_once_and_left_only_clearly() -> None:
    state = cluster(node("n1"))
    conditions = Conditions(state)
    (first,) = look(conditions, state, 10_000, temperature_c=61)
    assert isinstance(first, ObserveCondition)
    assert first.heat_band == 2
    assert look(conditions, state, 20_000, temperature_c=59) == []
    (cooler,) = look(conditions, state, 30_000, temperature_c=57)
    assert isinstance(cooler, ObserveCondition)
    assert cooler.heat_band == 1


def test_a_card_is_not_spoken_of_too_often() -> None:
    state = cluster(node("n1"))
    conditions = Conditions(state)
    assert look(conditions, state, 10_000, utilization_percent=50)
    assert look(conditions, state, 12_000, utilization_percent=95) == []
    assert look(conditions, state, 15_000, utilization_percent=95)


def test_rest_grows_while_nothing_runs() -> None:
    state = cluster(node("n1"))
    conditions = Conditions(state)
    assert look(conditions, state, 10_000) == []
    (rested,) = look(conditions, state, 80_000)
    assert isinstance(rested, ObserveCondition)
    assert rested.rest_band == 1


def test_a_card_that_nobody_could_choose_is_not_spoken_of() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    assert look(Conditions(state), state, 10_000, utilization_percent=99, temperature_c=90) == []


def test_packing_does_not_look_at_load() -> None:
    state = cluster(node("n1"), settings=Settings(placement=Placement.PACK))
    assert look(Conditions(state), state, 10_000, utilization_percent=99, temperature_c=90) == []


def test_what_outgrows_its_share_is_told_once_and_counts_as_taken() -> None:
    state = cluster(node("n1"), task(memory_mb=4_096, share=0.001))
    run_pass(state)
    conditions = Conditions(state)
    used = ((LeaseId(1), 5_000),)
    remark, observed = look(conditions, state, 10_000, leases_mb=used)
    assert isinstance(remark, Remark)
    assert remark.event == "memory_outgrown"
    assert remark.facts["used_mb"] == 5_000
    assert isinstance(observed, ObserveCondition)
    assert observed.over_mb == 1_024
    assert look(conditions, state, 20_000, leases_mb=used) == []
    assert state.gpus[GPU].over_mb == 1_024
