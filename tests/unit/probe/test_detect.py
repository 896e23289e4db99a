from __future__ import annotations

from dgpu.agent.probe.detect import DetectionMethod, GpuSelection, detect
from dgpu.agent.probe.models import parse_cards
from dgpu.agent.probe.probe import FoundGpu
from dgpu.core.model.ids import GpuId, NodeId


def found(*names: str) -> list[FoundGpu]:
    return [
        FoundGpu(id=GpuId(f"GPU-{name}"), index=i, model="V100", memory_mb=1) for i, name in enumerate(names)
    ]


def picked(selection: GpuSelection, gpus: list[FoundGpu]) -> list[tuple[str, bool]]:
    return [(choice.gpu.id, choice.reserved) for choice in selection.pick(gpus)]


def test_without_a_choice_all_cards_are_used() -> None:
    gpus = found("a", "b")
    assert picked(GpuSelection.resolve(gpus), gpus) == [("GPU-a", False), ("GPU-b", False)]


def test_cards_are_chosen_by_index_or_uuid() -> None:
    gpus = found("a", "b", "c")
    selection = GpuSelection.resolve(gpus, gpu_ids=[0, "gpu-C"])
    assert picked(selection, gpus) == [("GPU-a", False), ("GPU-c", False)]
    assert selection.missing == ()


def test_a_reserved_card_is_shown_and_marked() -> None:
    gpus = found("a", "b", "c")
    selection = GpuSelection.resolve(gpus, gpu_ids=["1"], reserved_gpu_ids=[0])
    assert picked(selection, gpus) == [("GPU-a", True), ("GPU-b", False)]


def test_an_index_keeps_meaning_the_card_it_meant_at_the_start() -> None:
    """When card a dies, b moves to index 0; it must not be taken for a."""
    selection = GpuSelection.resolve(found("a", "b"), gpu_ids=[0])
    assert picked(selection, found("b")) == []


def test_ids_that_name_no_card_are_told() -> None:
    selection = GpuSelection.resolve(found("a"), gpu_ids=[0, 7], reserved_gpu_ids=["GPU-x"])
    assert selection.missing == ("7", "gpu-x")
    assert picked(selection, found("a")) == [("GPU-a", False)]


def test_simulated_cards_are_detected_when_asked_for() -> None:
    detection = detect(DetectionMethod.SIMULATED, node_id=NodeId("n"), simulated=parse_cards("4xV100"))
    assert detection.method is DetectionMethod.SIMULATED
    assert len(detection.gpus) == 4


def test_simulating_nothing_is_no_detection_and_says_why() -> None:
    detection = detect(DetectionMethod.SIMULATED)
    assert detection.probe is None
    assert "gpu.simulated" in detection.why_none
