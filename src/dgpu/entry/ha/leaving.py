"""`dgpu ha leave`: the scheduler of this machine goes on alone, with a journal in files."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dgpu.entry.ha.engine_cluster import engine_settings
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.init import directory_lock, running_member
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.journal.durable import sync_folder
from dgpu.journal.engine import EngineError
from dgpu.journal.errors import JournalError
from dgpu.journal.etcd.founding import Founder
from dgpu.service.recovery.lost_tail import readable_state


class Left(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    me: str
    others: tuple[str, ...]
    index: int
    epoch: int


def leave_cluster(directory: Path) -> Left:
    """Closes the journal of the engine first, so that no other scheduler continues it. Raises HaFailure."""
    files = MemberFiles(directory)
    member = files.member()
    if member.role != "scheduler":
        raise HaFailure(
            f"{member.me} is a witness. Stop it and delete {directory}; dgpu ha leave is for a scheduler"
        )
    with directory_lock(directory), running_member(directory):
        try:
            state, index = readable_state(directory)
            _close(files, member.members, member.me, index)
        except (EngineError, JournalError) as error:
            raise HaFailure(str(error)) from error
    files.forget()
    if files.folder.exists():
        files.folder.rename(files.folder.with_name(f"engine-left-{time.time_ns() // 1_000_000}"))
    sync_folder(directory)
    others = tuple(each for each in member.members if each != member.me)
    return Left(directory=str(directory), me=member.me, others=others, index=index, epoch=state.epoch)


def _close(files: MemberFiles, members: tuple[str, ...], me: str, index: int) -> None:
    store = Founder(engine_settings(files, members))
    try:
        why = store.close_journal(index=index, successor=me)
    finally:
        store.close()
    if why:
        raise HaFailure(why)
