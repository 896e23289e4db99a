"""A real executable named nvidia-smi in PATH prints recorded output of the real tool."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from dgpu.agent.probe.detect import DetectionMethod, detect
from dgpu.agent.probe.nvidia_smi import NvidiaSmiProbe
from dgpu.agent.probe.probe import ProbeError, ProbeUnavailableError
from dgpu.core.model.ids import GpuId

A, B = GpuId("GPU-aaaa"), GpuId("GPU-bbbb")
CARD_A = "0, GPU-aaaa, 00000000:0B:00.0, 32768, 1024, 12, 45, 60.42, [N/A], Tesla V100-SXM2-32GB"
CARD_B = "1, GPU-bbbb, 00000000:0C:00.0, 32768, 0, 0, 33, 40.00, [N/A], Tesla V100-SXM2-32GB"
LOST_A = (
    "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU"
)

TOOL = """#!{python}
import pathlib, sys, time
here = pathlib.Path({folder!r})
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
asked = [a for a in sys.argv if a.startswith("--id=")]
kind = "apps" if any("compute-apps" in a for a in sys.argv) else "cards"
if asked and (here / (kind + ".by_id")).exists():
    kind += ".by_id"
if (here / "hang").exists():
    time.sleep(3600)
sys.stdout.write((here / kind).read_text())
sys.exit(int((here / (kind + ".code")).read_text()) if (here / (kind + ".code")).exists() else 0)
"""


class Tool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "nvidia-smi"
        path.write_text(TOOL.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
        self.says(CARD_A, CARD_B)
        self.runs()

    def says(self, *lines: str, code: int = 0, kind: str = "cards") -> None:
        (self.folder / kind).write_text("".join(line + "\n" for line in lines))
        (self.folder / f"{kind}.code").write_text(str(code))

    def runs(self, *lines: str) -> None:
        self.says(*lines, kind="apps")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Tool(tmp_path)


def test_cards_and_samples_are_read_from_the_query(tool: Tool) -> None:
    probe = NvidiaSmiProbe()
    first, second = probe.list_gpus()
    assert (first.id, first.index, first.model, first.memory_mb) == (A, 0, "Tesla V100-SXM2-32GB", 32768)
    assert second.id == B
    sample = probe.sample({})[0]
    assert (sample.utilization_percent, sample.memory_used_mb, sample.temperature_c, sample.power_w) == (
        12,
        1024,
        45,
        60,
    )


def test_units_are_understood_although_none_were_asked_for(tool: Tool) -> None:
    tool.says(
        "0, GPU-aaaa, 00000000:0B:00.0, 24564 MiB, 512 MiB, 98 %, 71, 449.87 W, [N/A], NVIDIA GeForce RTX 4090"
    )
    probe = NvidiaSmiProbe()
    (gpu,) = probe.list_gpus()
    (sample,) = probe.sample({})
    assert (gpu.memory_mb, gpu.model) == (24564, "GeForce RTX 4090")
    assert (sample.memory_used_mb, sample.utilization_percent, sample.power_w) == (512, 98, 450)


def test_a_comma_in_a_name_stays_in_the_name(tool: Tool) -> None:
    tool.says("0, GPU-aaaa, 00000000:0B:00.0, 1, 1, 1, 1, 1.0, [N/A], Graphics Device, Rev. 2")
    assert NvidiaSmiProbe().list_gpus()[0].model == "Graphics Device, Rev. 2"


@pytest.mark.parametrize(
    "absent", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[Insufficient Permissions]"]
)
def test_figures_that_are_not_offered_are_zero_and_no_fault(tool: Tool, absent: str) -> None:
    tool.says(f"0, GPU-aaaa, 00000000:0B:00.0, 24564, 512, {absent}, {absent}, {absent}, {absent}, T4")
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    (sample,) = probe.sample({})
    assert (sample.utilization_percent, sample.temperature_c, sample.power_w, sample.fault) == (0, 0, 0, "")
    assert sample.memory_used_mb == 512
    assert sample.untold == ("utilization", "temperature", "power")


def test_memory_that_is_not_offered_is_zero_and_no_fault(tool: Tool) -> None:
    tool.says("0, GPU-aaaa, 0000000F:01:00.0, [N/A], [N/A], 5, 40, 12.0, [N/A], NVIDIA GB10")
    (gpu,) = NvidiaSmiProbe().list_gpus()
    assert (gpu.memory_mb, gpu.fault) == (0, "")


@pytest.mark.parametrize(
    ("memory", "word"),
    [
        ("[Unknown Error]", "memory"),
        ("ERR!", "memory"),
        ("[GPU is lost]", "lost"),
        ("[GPU requires reset]", "reset"),
    ],
)
def test_a_card_whose_memory_cannot_be_read_has_a_fault_and_keeps_its_size(
    tool: Tool, memory: str, word: str
) -> None:
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    tool.says(
        f"0, GPU-aaaa, 00000000:0B:00.0, {memory}, {memory}, ERR!, ERR!, ERR!, [N/A], Tesla V100-SXM2-32GB",
        CARD_B,
    )
    broken, healthy = probe.sample({})
    assert word in broken.fault
    assert healthy.fault == ""
    assert probe.list_gpus()[0].memory_mb == 32768


def test_a_lost_card_among_the_others_has_a_fault(tool: Tool) -> None:
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    tool.says(LOST_A, CARD_B)
    lost, healthy = probe.list_gpus()
    assert (lost.id, lost.memory_mb) == (A, 32768)
    assert "GPU is lost" in lost.fault
    assert (healthy.id, healthy.fault) == (B, "")


def test_a_tool_that_stops_at_a_lost_card_is_asked_for_the_others_by_name(tool: Tool) -> None:
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    tool.says(LOST_A, code=15)
    tool.says(CARD_B, kind="cards.by_id")
    lost, healthy = probe.sample({})
    assert "GPU is lost" in lost.fault
    assert (healthy.fault, healthy.temperature_c) == ("", 33)
    assert "--id=GPU-bbbb" in (tool.folder / "calls").read_text()


def test_a_card_that_is_gone_has_no_figures_but_a_fault_until_the_next_list(tool: Tool) -> None:
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    tool.says(CARD_B)
    gone, stays = probe.sample({})
    assert "no longer" in gone.fault
    assert stays.fault == ""
    assert [gpu.id for gpu in probe.list_gpus()] == [B]


def test_processes_that_are_not_ours_are_foreign_and_all_are_holders(tool: Tool) -> None:
    tool.runs("GPU-aaaa, 100, 600", "GPU-aaaa, 101, 300 MiB", "GPU-bbbb, 102, 50")
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    assert [sample.memory_foreign_mb for sample in probe.sample({A: frozenset({100})})] == [300, 50]
    assert probe.holders(A) == {100, 101}


def test_a_process_without_a_figure_is_what_ours_do_not_hold(tool: Tool) -> None:
    tool.runs("GPU-aaaa, 100, 600", "GPU-aaaa, 101, [N/A]")
    probe = NvidiaSmiProbe()
    probe.list_gpus()
    assert probe.sample({A: frozenset({100})})[0].memory_foreign_mb == 424


def test_a_hung_tool_is_killed_and_may_recover(tool: Tool) -> None:
    probe = NvidiaSmiProbe(timeout_seconds=0.5)
    (tool.folder / "hang").touch()
    started = time.monotonic()
    with pytest.raises(ProbeError, match="killed"):
        probe.list_gpus()
    assert time.monotonic() - started < 60
    (tool.folder / "hang").unlink()
    probe._timeout_seconds = 60
    assert len(probe.list_gpus()) == 2, "the hung one is gone, so another may be started"


def test_a_driver_that_does_not_answer_is_told_in_the_tools_words(tool: Tool) -> None:
    tool.says("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    with pytest.raises(ProbeError, match=r"code 9.*couldn't communicate"):
        NvidiaSmiProbe().list_gpus()


def test_a_machine_without_cards_lists_none(tool: Tool) -> None:
    tool.says("No devices were found", code=6)
    assert NvidiaSmiProbe().list_gpus() == []


def test_a_machine_without_the_tool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProbeUnavailableError, match="not in PATH"):
        NvidiaSmiProbe()


def test_detection_by_the_tool_gives_a_probe(tool: Tool) -> None:
    detection = detect(DetectionMethod.NVIDIA_SMI)
    assert detection.method is DetectionMethod.NVIDIA_SMI
    assert [gpu.id for gpu in detection.gpus] == [A, B]
    assert detection.why_none == ""
