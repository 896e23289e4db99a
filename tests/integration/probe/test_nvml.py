from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NO_PERMISSION, NOT_SUPPORTED, DRIVER_NOT_LOADED, LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = (
    4,
    3,
    9,
    15,
    16,
    18,
    999,
)


class Card:
    def __init__(self, uuid: str, name: str = "NVIDIA V100", **figures: int) -> None:
        self.uuid = uuid
        self.name = name
        self.figures = {
            "total": 32768,
            "used": 100,
            "util": 7,
            "temp": 41,
            "power": 55_400,
            "code": 0,
            **figures,
        }

    def line(self) -> str:
        f = self.figures
        return f"gpu {self.uuid}|{self.name}|{f['total']}|{f['used']}|{f['util']}|{f['temp']}|{f['power']}|{f['code']}"


class Nvml:
    """A process that probes, and the file that tells its NVML what there is."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.control = folder / "world"
        self.world(Card("GPU-a"), Card("GPU-b"))
        self._process = subprocess.Popen(
            (sys.executable, str(HERE / "nvml_child.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library.parent),
                "FAKE_NVML_CONTROL": str(self.control),
                "PATH": str(folder),  # no nvidia-smi of the machine
            },
        )

    def world(self, *cards: Card, more: str = "") -> None:
        fresh = self.control.with_suffix(".new")
        fresh.write_text("\n".join([*(card.line() for card in cards), more, ""]))
        fresh.replace(self.control)

    def ask(self, verb: str, argument: Any = None) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, argument]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ok(self, verb: str, argument: Any = None) -> Any:
        reply = self.ask(verb, argument)
        assert "ok" in reply, reply
        return reply["ok"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML of the tests")

    def compile_library(*flags: str) -> Path:
        library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
        subprocess.run(
            (compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", library, HERE / "fake_nvml.c"),
            check=True,
            timeout=120,
        )
        return library

    return compile_library


@pytest.fixture(scope="session")
def library(build) -> Path:
    return build()


@pytest.fixture
def nvml(library: Path, tmp_path: Path) -> Iterator[Nvml]:
    process = Nvml(library, tmp_path)
    yield process
    process.close()


def test_cards_are_listed_by_uuid_with_model_and_memory(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a"), Card("GPU-b", "NVIDIA GeForce RTX 4090", total=24564))
    nvml.ok("open")
    assert nvml.ok("list") == [
        {"id": "GPU-a", "index": 0, "model": "V100", "memory_mb": 32768, "fault": ""},
        {"id": "GPU-b", "index": 1, "model": "GeForce RTX 4090", "memory_mb": 24564, "fault": ""},
    ]


def test_a_sample_carries_the_cards_own_figures(nvml: Nvml) -> None:
    nvml.world(Card("GPU-a", used=9000, util=93, temp=71, power=248_600))
    nvml.ok("open")
    nvml.ok("list")
    assert nvml.ok("sample", {}) == [
        {
            "gpu_id": "GPU-a",
            "utilization_percent": 93,
            "memory_used_mb": 9000,
            "memory_foreign_mb": 0,
            "temperature_c": 71,
            "power_w": 249,
            "fault": "",
        }
    ]


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
    """Until NVML starts anew it remembers the card; the next look starts it anew."""
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
