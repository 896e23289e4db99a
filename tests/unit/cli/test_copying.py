"""Files are written below the target directory, whatever another user puts there meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.cli.copying import target_directory
from dgpu.cli.failures import CliFailure


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def swapped(directory: Path, outside: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.symlink_to(outside)


def test_a_directory_that_becomes_a_link_during_the_download_leads_nowhere(into: Path) -> None:
    outside = into.parent / "outside"

    def pieces() -> Iterator[bytes]:
        yield b"first"
        swapped(into / "sub", outside)
        yield b" second"

    with target_directory(into) as target:
        assert target.write_file(("sub", "file"), pieces(), force=True, modified_s=0.0) == 12
        with pytest.raises(CliFailure, match="sub is a link or a file"):
            target.write_file(("sub", "next"), [b"x"], force=True, modified_s=None)
        with pytest.raises(CliFailure, match="sub is a link or a file"):
            target.make_directory(("sub", "deeper"))
    assert list(outside.iterdir()) == []
    assert (into / "moved" / "file").read_bytes() == b"first second"


def test_the_target_itself_may_be_a_link_and_is_opened_once(into: Path) -> None:
    """The user named it."""
    named, outside = into.with_name("named"), into.parent / "outside"
    named.symlink_to(into)
    with target_directory(named) as target:
        named.unlink()
        named.symlink_to(outside)
        target.write_file(("file",), [b"x"], force=False, modified_s=None)
    assert (into / "file").read_bytes() == b"x"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_link_in_the_place_of_a_file_is_never_written_through(into: Path, force: bool) -> None:
    theirs = into.parent / "outside" / "theirs"
    theirs.write_bytes(b"theirs")
    (into / "file").symlink_to(theirs)
    with target_directory(into) as target:
        if force:
            target.write_file(("file",), [b"new"], force=True, modified_s=None)
        else:
            with pytest.raises(CliFailure, match="--force"):
                target.write_file(("file",), [b"new"], force=False, modified_s=None)
    assert theirs.read_bytes() == b"theirs"
    assert (into / "file").is_symlink() != force
    assert [each.name for each in into.iterdir()] == ["file"]
