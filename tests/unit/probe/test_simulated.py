from __future__ import annotations

import pytest

from dgpu.agent.probe.models import UNKNOWN_MODEL, SimulatedCards, card_model, parse_cards
from dgpu.agent.probe.probe import ProbeError, Sample
from dgpu.agent.probe.simulated import SimulatedProbe, simulated_gpu_id
from dgpu.core.model.ids import GpuId, NodeId


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def probe_of(text: str, clock: Clock, *, node: str = "n1", seed: int = 7) -> SimulatedProbe:
    return SimulatedProbe(node_id=NodeId(node), cards=parse_cards(text), seed=seed, clock=clock)


def run(probe: SimulatedProbe, clock: Clock, *, busy: bool, seconds: int) -> list[Sample]:
    """One sample of the first card per second."""
    gpu_id = probe.list_gpus()[0].id
    samples = []
    for _ in range(seconds):
        clock.now += 1.0
        samples.append(probe.sample({gpu_id: frozenset()} if busy else {})[0])
    return samples


def test_a_list_of_models_becomes_cards_with_the_products_memory() -> None:
    gpus = probe_of("2xV100, A100-80GB,1x RTX 4090", Clock()).list_gpus()
    assert [(gpu.index, gpu.model, gpu.memory_mb) for gpu in gpus] == [
        (0, "V100", 32_768),
        (1, "V100", 32_768),
        (2, "A100-80GB", 81_920),
        (3, "RTX 4090", 24_576),
    ]


@pytest.mark.parametrize("name", ["V100", "v100", "Tesla V100", "NVIDIA Tesla V100-SXM2"])
def test_a_product_is_found_under_its_usual_names(name: str) -> None:
    assert card_model(name).memory_mb == 32_768


@pytest.mark.parametrize("name", ["4090", "RTX4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx_4090"])
def test_the_card_of_a_workstation_is_found_however_it_is_written(name: str) -> None:
    assert card_model(name).memory_mb == 24_576


def test_a_model_nobody_knows_is_a_card_of_16_gib() -> None:
    assert card_model("Imagination 9000") == UNKNOWN_MODEL


def test_a_given_memory_size_wins() -> None:
    probe = SimulatedProbe(node_id=NodeId("n"), cards=(SimulatedCards(model="V100", memory_mb=1234),))
    assert probe.list_gpus()[0].memory_mb == 1234


@pytest.mark.parametrize("text", ["", "0xV100", "4x", ",", "4xV100,", "999999xV100", "4xV1\n00"])
def test_a_list_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"GPUs|count|name"):
        parse_cards(text)


def test_uuids_are_stable_and_differ_between_nodes() -> None:
    first, again = probe_of("2xV100", Clock()), probe_of("2xV100", Clock(), seed=99)
    other = probe_of("2xV100", Clock(), node="n2")
    assert [gpu.id for gpu in first.list_gpus()] == [gpu.id for gpu in again.list_gpus()]
    assert first.list_gpus()[1].id == simulated_gpu_id(NodeId("n1"), 1)
    assert not {gpu.id for gpu in first.list_gpus()} & {gpu.id for gpu in other.list_gpus()}


def test_equal_seeds_clocks_and_calls_give_equal_telemetry() -> None:
    def story(seed: int) -> list[Sample]:
        clock = Clock()
        probe = probe_of("1xV100", clock, seed=seed)
        return run(probe, clock, busy=True, seconds=20) + run(probe, clock, busy=False, seconds=20)

    assert story(7) == story(7)
    assert story(7) != story(8)


def test_load_raises_utilisation_at_once_memory_soon_and_temperature_slowly() -> None:
    clock = Clock()
    probe = probe_of("1xV100", clock)
    idle = run(probe, clock, busy=False, seconds=5)[-1]
    assert (idle.utilization_percent, idle.memory_used_mb) == (0, 0)
    busy = run(probe, clock, busy=True, seconds=200)
    assert busy[5].utilization_percent > 70
    assert busy[0].memory_used_mb < busy[5].memory_used_mb < busy[30].memory_used_mb <= 32_768
    assert busy[5].temperature_c < busy[60].temperature_c
    assert 60 <= busy[-1].temperature_c <= 90
    assert idle.power_w < 60 < 200 < busy[-1].power_w <= 300


def test_a_released_card_frees_its_memory_at_once_and_cools_slowly() -> None:
    clock = Clock()
    probe = probe_of("1xV100", clock)
    hot = run(probe, clock, busy=True, seconds=200)[-1]
    after = run(probe, clock, busy=False, seconds=120)
    assert after[0].memory_used_mb == 0
    assert after[0].temperature_c >= hot.temperature_c - 3
    assert after[-1].temperature_c < hot.temperature_c - 20


def test_figures_stay_within_what_a_card_can_show() -> None:
    clock = Clock()
    probe = probe_of("1xT4", clock)
    for sample in run(probe, clock, busy=True, seconds=500):
        assert 0 <= sample.utilization_percent <= 100
        assert 0 <= sample.memory_used_mb <= 16_384
        assert sample.power_w <= 70


def test_a_clock_that_stands_still_changes_nothing_but_noise() -> None:
    clock = Clock()
    probe = probe_of("1xV100", clock)
    first, second = probe.sample({})[0], probe.sample({})[0]
    assert first == second


def test_faults_foreign_memory_clinging_processes_and_absence_can_be_arranged() -> None:
    clock = Clock()
    probe = probe_of("2xV100", clock)
    first, second = (gpu.id for gpu in probe.list_gpus())
    probe.set_fault(first, "fell off the bus")
    probe.set_foreign_mb(second, 700)
    probe.set_holders(second, frozenset({42}))
    assert [sample.fault for sample in probe.sample({})] == ["fell off the bus", ""]
    assert (probe.sample({})[1].memory_used_mb, probe.sample({})[1].memory_foreign_mb) == (700, 700)
    assert (probe.holders(first), probe.holders(second)) == (frozenset(), {42})
    probe.set_present(first, present=False)
    assert [gpu.id for gpu in probe.list_gpus()] == [second]
    with pytest.raises(ProbeError):
        probe.holders(first)


def test_asking_for_an_unknown_card_is_an_error() -> None:
    with pytest.raises(ProbeError):
        probe_of("1xV100", Clock()).holders(GpuId("GPU-none"))
