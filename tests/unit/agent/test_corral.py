"""Which controllers a new group asks for. The files are plain ones, which keep the words that a kernel would obey."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.agent.corral import _delegated


def group(root: Path, *, controllers: str, processes: str = "", kind: str = "domain\n") -> Path:
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.procs").write_text(processes)
    (root / "cgroup.subtree_control").write_text("")
    if kind:  # the topmost group of a machine has none
        (root / "cgroup.type").write_text(kind)
    return root


def asked(group: Path) -> str:
    _delegated(group)
    return (group / "cgroup.subtree_control").read_text()


@pytest.mark.parametrize(
    ("controllers", "words"),
    [
        ("cpuset cpu io memory hugetlb pids", "+cpu +memory +pids"),
        ("cpuset cpu io pids", "+cpu +pids"),  # memory is switched off on some machines
        ("cpuset", ""),
    ],
)
def test_only_controllers_of_this_machine_are_asked_for(tmp_path: Path, controllers: str, words: str) -> None:
    """The kernel refuses all of them if one is unknown."""
    assert asked(group(tmp_path, controllers=controllers)) == words


def test_a_group_with_processes_is_left_alone(tmp_path: Path) -> None:
    """With cpu and pids alone, the kernel would accept, and refuse every process in the groups below."""
    assert asked(group(tmp_path, controllers="cpu pids", processes="7\n")) == ""


def test_the_topmost_group_may_have_processes(tmp_path: Path) -> None:
    assert asked(group(tmp_path, controllers="cpu pids", processes="1\n", kind="")) == "+cpu +pids"
