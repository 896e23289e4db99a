"""A scheduler starts with a local copy that does not have all acknowledged groups."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from dgpu.journal.checkpoint import last_index
from dgpu.journal.errors import LostTail
from dgpu.journal.mark import MARK_NAME, AcknowledgedMark, read_mark
from dgpu.journal.memory_engine import MemoryEngine, SharedState
from integration.service.members import Member

pytestmark = pytest.mark.timeout(180)

TASK = {"command": "true"}


async def test_a_copy_that_lacks_acknowledged_groups_gets_them_from_the_engine(tmp_path: Path) -> None:
    """Its disk was full after the commit, and the process died before there was room. The mark records the group."""
    member = Member(tmp_path, SharedState(), "a")
    try:
        await lead_and_submit(member)
        await member.stop()
        shutil.copytree(tmp_path / "a", tmp_path / "earlier")
        await lead_and_submit(member)
        await member.stop()
        mark, behind = read_mark(tmp_path / "a"), last_index(tmp_path / "earlier")
        shutil.copy(tmp_path / "a" / MARK_NAME, tmp_path / "earlier")
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "earlier").rename(tmp_path / "a")
        assert mark is not None
        assert behind < mark.index
        await member.start()
        await member.until_role("master")
        assert (await member.ask("/api/v1/tasks")).body["total"] == 2
        assert last_index(tmp_path / "a") > mark.index
    finally:
        await member.end()


async def test_an_engine_that_lacks_acknowledged_groups_is_refused(tmp_path: Path) -> None:
    """It was restored from an old copy: the scheduler must not lead and give out the same numbers again."""
    shared = SharedState()
    member = Member(tmp_path, shared, "a")
    try:
        await lead_and_submit(member)
        await member.stop()
        mark = read_mark(tmp_path / "a")
        assert mark is not None
        ahead = msgspec.structs.replace(mark, index=mark.index + 1, last_task=mark.last_task + 1)
        AcknowledgedMark(tmp_path / "a").note(ahead)
        with pytest.raises(LostTail, match=f"acknowledged records group {ahead.index}") as refused:
            await member.start()
            await member.serving
        assert "The engine does not have them either" in str(refused.value)
        assert "accept-lost-tail" not in str(refused.value)
        assert MemoryEngine(shared).head().index == mark.index
    finally:
        await member.end()


async def lead_and_submit(member: Member) -> None:
    await member.start()
    await member.until_role("master")
    assert (await member.ask("/api/v1/tasks", TASK)).status == 201
