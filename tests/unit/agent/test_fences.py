"""Limits in groups of version 2. The files are plain ones: a kernel binds memory and cpu to one version for all groups,
so a machine with these controllers on version 1 cannot try the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dgpu.agent import fences as module
from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences

ACCOUNT = (70_000, 70_000, [], 512)  # uid, gid, groups, processes


class PlainFiles(Corral):
    def __init__(self, root: Path, *controllers: str) -> None:
        self._root = root
        self.controllers = frozenset(controllers)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return tmp_path / "7"


def fences_in(
    root: Path, monkeypatch: pytest.MonkeyPatch, *controllers: str, v1: dict[str, Path] | None = None
) -> Fences:
    monkeypatch.setattr(module, "_v1_places", lambda _: v1 or {})
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    return Fences(PlainFiles(root, *controllers), "test")


def order(**limits: int) -> dict[str, Any]:
    return {"lease": 7, "account": ACCOUNT, **limits}


def test_every_limit_is_written_before_the_first_process(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = fences_in(tmp_path, monkeypatch, "memory", "cpu", "pids")
    with fences.made(order(ram_mb=64, cpus_milli=2_500)) as groups:
        written = {path.name: path.read_text() for path in group.iterdir()}
        assert written == {
            "memory.max": str(64 << 20),
            "memory.oom.group": "1",  # the whole task ends, not its largest process
            "cpu.weight": "250",
            "pids.max": "512",
        }
        # A child that is created in the group would count the keeper's memory against the task.
        assert groups == ([f"{group}/cgroup.procs"], -1)
    assert {"memory", "pids", "cpus"} <= set(fences.enforced)


def test_without_requests_only_the_number_of_processes_is_limited(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = fences_in(tmp_path, monkeypatch, "memory", "cpu", "pids")
    with fences.made(order()) as groups:
        assert [path.name for path in group.iterdir()] == ["pids.max"]
        assert groups.into >= 0
    assert not fences.counts_memory(7)


def test_a_task_with_a_limit_of_memory_gets_no_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be swapped out at its limit instead of killed."""
    v2, v1 = tmp_path / "7", tmp_path / "v1" / "7"
    for file in (v2 / "memory.swap.max", v1 / "memory.memsw.limit_in_bytes"):
        file.parent.mkdir(parents=True)
        file.write_text("max")
    with fences_in(tmp_path, monkeypatch, "memory").made(order(ram_mb=64)):
        assert (v2 / "memory.swap.max").read_text() == "0"
    with fences_in(tmp_path, monkeypatch, v1={"memory": v1.parent}).made(order(ram_mb=64)):
        assert (v1 / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)


@pytest.mark.parametrize(("cpus_milli", "weight"), [(1, "1"), (1_000, "100"), (1_000_000, "10000")])
def test_weights_stay_in_the_range_of_the_kernel(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch, cpus_milli: int, weight: str
) -> None:
    with fences_in(tmp_path, monkeypatch, "cpu").made(order(cpus_milli=cpus_milli)):
        assert (group / "cpu.weight").read_text() == weight


@pytest.mark.parametrize(("killed", "is_told"), [(0, False), (1, True), (12, True)])
def test_an_end_for_want_of_memory_is_told(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch, killed: int, is_told: bool
) -> None:
    fences = fences_in(tmp_path, monkeypatch, "memory")
    with fences.made(order(ram_mb=64)):
        (group / "memory.events").write_text(f"low 0\nhigh 0\nmax 31\noom 3\noom_kill {killed}\n")
    assert fences.counts_memory(7)
    assert ("ram_mb" in fences.release(7)) is is_told
    assert not fences.counts_memory(7)


def test_memory_of_version_1_is_used_where_version_2_has_none(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "v1"
    memory.mkdir()
    fences = fences_in(tmp_path, monkeypatch, v1={"memory": memory})
    with fences.made(order(ram_mb=64, cpus_milli=1_000)) as groups:
        assert list(group.iterdir()) == []
        assert (memory / "7" / "memory.limit_in_bytes").read_text() == str(64 << 20)
        assert groups.entries == [f"{group}/cgroup.procs", f"{memory}/7/cgroup.procs"]
    assert "memory" in fences.enforced
    assert "cpus" not in fences.enforced
