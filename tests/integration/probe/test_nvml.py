from __future__ import annotations

from pathlib import Path

import pytest

from nvml_world import (
    DRIVER_NOT_LOADED,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    Card,
    Nvml,
)


def test_cards_are_listed_by_uuid_with_model_and_memory(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a"), Card("GPU-b", "NVIDIA GeForce RTX 4090", total=24564))
    nvml.ok("open")
    names = ("id", "index", "model", "memory_mb", "fault")
    assert [tuple(gpu[name] for name in names) for gpu in nvml.ok("list")] == [
        ("GPU-a", 0, "V100", 32768, ""),
        ("GPU-b", 1, "GeForce RTX 4090", 24564, ""),
    ]


def test_a_sample_carries_the_cards_own_figures(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a", used=9000, util=93, temp=71, power=248_600))
    nvml.ok("open")
    nvml.ok("list")
    (sample,) = nvml.ok("sample", {})
    figures = {
        "gpu_id": "GPU-a",
        "utilization_percent": 93,
        "memory_used_mb": 9000,
        "memory_foreign_mb": 0,
        "temperature_c": 71,
        "power_w": 249,
        "fault": "",
        "fault_cause": "",
    }
    assert {name: sample[name] for name in figures} == figures


def test_memory_of_processes_that_are_not_ours_is_foreign(nvml: Nvml) -> None:
    """Graphics counts too, and a process in both lists counts once."""
    nvml.world(
        Card("GPU-a", used=9000),
        more="proc GPU-a|10|4000|C\nproc GPU-a|11|1500|C\nproc GPU-a|11|1500|G\nproc GPU-a|12|300|G\nproc GPU-b|13|7|C",
    )
    nvml.ok("open")
    nvml.ok("list")
    (sample,) = nvml.ok("sample", {"GPU-a": [10]})
    assert sample["memory_foreign_mb"] == 1800
    assert nvml.ok("holders", "GPU-a") == [10, 11, 12]


def test_memory_that_is_not_given_per_process_is_what_ours_do_not_hold(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a", used=9000), more="proc GPU-a|10|4000|C\nproc GPU-a|11|-1|C")
    nvml.ok("open")
    nvml.ok("list")
    (sample,) = nvml.ok("sample", {"GPU-a": [10]})
    assert sample["memory_foreign_mb"] == 5000


def test_clients_of_mps_hold_memory(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a"), more="proc GPU-a|21|50|M")
    nvml.ok("open")
    nvml.ok("list")
    assert nvml.ok("holders", "GPU-a") == [21]


def test_a_card_that_is_lost_while_running_keeps_its_place_with_a_fault(nvml: Nvml) -> None:
    nvml.ok("open")
    nvml.ok("list")
    nvml.world(Card("GPU-a"), Card("GPU-b", code=LOST))
    healthy, lost = nvml.ok("sample", {})
    assert healthy["fault"] == ""
    assert "lost" in lost["fault"]
    assert [(gpu["id"], gpu["memory_mb"], bool(gpu["fault"])) for gpu in nvml.ok("list")] == [
        ("GPU-a", 32768, False),
        ("GPU-b", 32768, True),
    ]
    assert nvml.ask("holders", "GPU-b")["kind"] == "ProbeError"


def test_a_lost_card_that_returns_is_healthy_again(nvml: Nvml) -> None:
    nvml.ok("open")
    nvml.ok("list")
    nvml.world(Card("GPU-a"), Card("GPU-b", code=LOST))
    nvml.ok("list")
    nvml.world(Card("GPU-a"), Card("GPU-b"))
    assert [gpu["fault"] for gpu in nvml.ok("list")] == ["", ""]


def test_a_card_that_disappears_is_first_lost_and_then_not_listed(nvml: Nvml) -> None:
    """NVML remembers the GPU until it is restarted; the next probe restarts it."""
    nvml.ok("open")
    nvml.ok("list")
    nvml.world(Card("GPU-b"))
    gone, stays = nvml.ok("sample", {})
    assert "lost" in gone["fault"]
    assert stays["fault"] == ""
    (only,) = nvml.ok("list")
    assert (only["id"], only["index"]) == ("GPU-b", 0)
    assert [sample["gpu_id"] for sample in nvml.ok("sample", {})] == ["GPU-b"]


def test_a_lost_card_never_seen_before_does_not_hide_the_others(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a", code=LOST), Card("GPU-b"))
    nvml.ok("open")
    assert [gpu["id"] for gpu in nvml.ok("list")] == ["GPU-b"]


@pytest.mark.parametrize(("code", "word"), [(RESET_REQUIRED, "reset"), (UNKNOWN, "cannot read")])
def test_a_card_that_cannot_be_read_has_a_fault_that_says_why(nvml: Nvml, code: int, word: str) -> None:
    nvml.ok("open")
    nvml.ok("list")
    nvml.world(Card("GPU-a", code=code), Card("GPU-b"))
    assert word in nvml.ok("sample", {})[0]["fault"]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
def test_figures_that_a_card_does_not_offer_are_zero_and_no_fault(nvml: Nvml, code: int) -> None:
    functions = ("UtilizationRates", "PowerUsage", "TemperatureV", "Temperature")
    nvml.world(Card("GPU-a"), more="\n".join(f"fail nvmlDeviceGet{name} {code}" for name in functions))
    nvml.ok("open")
    nvml.ok("list")
    (sample,) = nvml.ok("sample", {})
    assert (sample["utilization_percent"], sample["power_w"], sample["temperature_c"], sample["fault"]) == (
        0,
        0,
        0,
        "",
    )
    assert sample["memory_used_mb"] == 100
    assert set(sample["untold"]) == {"utilization", "temperature", "power"}


def test_memory_that_a_card_does_not_offer_is_zero_and_no_fault(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a"), more="fail nvmlDeviceGetMemoryInfo 3\nfail nvmlDeviceGetMemoryInfo_v2 3")
    nvml.ok("open")
    assert [(gpu["memory_mb"], gpu["fault"]) for gpu in nvml.ok("list")] == [(0, "")]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (DRIVER_NOT_LOADED, "not loaded"),
        (NO_PERMISSION, "permission"),
        (VERSION_MISMATCH, "different versions"),
    ],
)
def test_a_driver_that_cannot_be_used_says_why(nvml: Nvml, code: int, words: str) -> None:
    nvml.world(more=f"init {code}")
    reply = nvml.ask("open")
    assert reply["kind"] == "ProbeUnavailableError"
    assert words in reply["error"]


def test_a_driver_that_goes_away_and_comes_back_is_used_again(nvml: Nvml) -> None:
    nvml.ok("open")
    nvml.ok("list")
    nvml.world(Card("GPU-a", code=LOST), Card("GPU-b", code=LOST))
    nvml.ok("sample", {})
    nvml.world(more=f"init {DRIVER_NOT_LOADED}")
    assert nvml.ask("list")["kind"] == "ProbeUnavailableError"
    nvml.world(Card("GPU-a"), Card("GPU-b"))
    assert [gpu["fault"] for gpu in nvml.ok("list")] == ["", ""]


def test_an_old_driver_without_the_newer_calls_is_read_the_old_way(build, tmp_path: Path) -> None:
    old = Nvml(build("-DOLD_DRIVER"), tmp_path)
    old.world(Card("GPU-a", used=500, temp=66), more="proc GPU-a|10|400|C")
    old.ok("open")
    assert old.ok("list")[0]["memory_mb"] == 32768
    (sample,) = old.ok("sample", {})
    assert (sample["memory_used_mb"], sample["memory_foreign_mb"], sample["temperature_c"]) == (500, 400, 66)
    old.close()


def test_auto_takes_nvml_where_it_works(nvml: Nvml) -> None:
    detection = nvml.ok("detect", "auto")
    assert detection["method"] == "nvml"
    assert [gpu["id"] for gpu in detection["gpus"]] == ["GPU-a", "GPU-b"]


def test_auto_says_why_each_way_failed(nvml: Nvml) -> None:
    nvml.world(more=f"init {DRIVER_NOT_LOADED}")
    detection = nvml.ok("detect", "auto")
    assert detection["method"] is None
    reasons = {attempt["method"]: attempt["reason"] for attempt in detection["attempts"]}
    assert "not loaded" in reasons["nvml"]
    assert "not in PATH" in reasons["nvidia-smi"]
