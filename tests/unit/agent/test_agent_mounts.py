"""Which paths may hang: followed step by step, none of them touched before the mount table is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dgpu.agent import mounts
from dgpu.agent.mounts import Mounts

LINE = "{n} 1 0:{n} / {point} rw,relatime shared:1 - {kind} source rw\n"


def table(directory: Path, **points: str) -> Mounts:
    """Mounts by path: `root="ext4"` is /, all others are below the directory."""
    lines = [LINE.format(n=1, point="/", kind=points.pop("root", "ext4"))]
    for number, (name, kind) in enumerate(points.items(), 2):
        point = str(directory / name).replace(" ", "\\040")
        lines.append(LINE.format(n=number, point=point, kind=kind))
    file = directory / "mountinfo"
    file.write_text("".join(lines))
    return Mounts(str(file))


@pytest.mark.parametrize(
    ("kind", "local"),
    [
        ("nfs4", False),
        ("fuse.sshfs", False),
        ("autofs", False),
        ("lustre", False),
        ("xfs", True),
        ("tmpfs", True),
    ],
)
def test_the_kind_of_a_mount_decides_for_all_below_it(tmp_path, kind, local) -> None:
    known = table(tmp_path, data=kind)
    assert known.is_local(f"{tmp_path}/data/deep/below") is local
    assert known.is_local(f"{tmp_path}/data") is local
    assert known.is_local(f"{tmp_path}/database")


def test_a_link_is_followed_and_what_may_hang_is_never_touched(tmp_path, monkeypatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data" / "home")
    (tmp_path / "near").symlink_to("other/../link/x")
    known = table(tmp_path, data="nfs")
    touched = []
    real = os.readlink

    def readlink(path: str) -> str:
        touched.append(path)
        return real(path)

    monkeypatch.setattr(mounts.os, "readlink", readlink)
    assert not known.is_local(f"{tmp_path}/link/project")
    assert not known.is_local(f"{tmp_path}/near")
    assert not any(str(path).startswith(f"{tmp_path}/data") for path in touched)


def test_a_path_that_leaves_a_mount_again_still_passes_through_it(tmp_path) -> None:
    assert not table(tmp_path, data="nfs").is_local(f"{tmp_path}/data/../other")


def test_links_that_go_round_in_a_circle_end(tmp_path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert table(tmp_path).is_local(f"{tmp_path}/a/x")


def test_a_mount_point_with_a_space_is_known(tmp_path) -> None:
    known = table(tmp_path, **{"my data": "cifs"})
    assert not known.is_local(f"{tmp_path}/my data/x")


def test_a_script_is_as_local_as_its_interpreter(tmp_path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{tmp_path}/conda/bin/python -u\nprint(1)\n")
    known = table(tmp_path, conda="nfs")
    assert known.is_local(str(script))
    assert not known.is_local_program(str(script))
    (tmp_path / "plain").write_text("echo 1\n")
    assert known.is_local_program(str(tmp_path / "plain"))


def test_a_relative_path_and_one_on_a_network_root_may_hang(tmp_path) -> None:
    assert not table(tmp_path).is_local("here")
    assert not table(tmp_path, root="nfs").is_local("/usr/bin/true")


def test_the_real_table_of_this_machine_can_be_read() -> None:
    assert Mounts().is_local("/proc/self")
