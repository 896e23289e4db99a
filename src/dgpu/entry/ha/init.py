"""`dgpu ha init`: makes the scheduler of this machine the first of a highly available cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dgpu.entry.config_types import Logging
from dgpu.entry.ha.certificates import issue_own
from dgpu.entry.ha.engine_cluster import EngineCluster, engine_settings
from dgpu.entry.ha.errors import EngineSilent, HaFailure
from dgpu.entry.ha.etcd_program import find_etcd
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress, why_not_members
from dgpu.entry.ha.supervisor import MemberSupervisor
from dgpu.entry.logs import set_up_logging
from dgpu.journal.checkpoint import Checkpoint, write_checkpoint
from dgpu.journal.durable import make_folder
from dgpu.journal.engine import EngineError
from dgpu.journal.errors import JournalError, JournalLocked
from dgpu.journal.etcd.connection import NoSpace
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.founding import Founder
from dgpu.journal.lock import FolderLock
from dgpu.journal.segments import JOURNAL_FOLDER
from dgpu.journal.snapshot import encode_snapshot
from dgpu.service.copies.wholeness import OUTPUT_FOLDER, Wholeness
from dgpu.service.machines.member_marker import Member
from dgpu.service.recovery.lost_tail import readable_state

_PATIENCE_S = 60.0
_PAUSE_S = 0.2


class Initiated(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    me: str
    members: tuple[str, ...]
    cluster_id: str  # empty: the first start of the scheduler makes it
    index: int  # the last group that was taken over
    epoch: int
    tasks: int
    new: bool  # False: it was done before


def initiate(directory: Path, members: Sequence[str], me: str) -> Initiated:
    """Repeating it does nothing more. The scheduler must not run. Raises HaFailure."""
    me_address, all_members = _checked(members, me)
    files = MemberFiles(directory)
    existing = files.read()
    if existing is not None and (existing.me, existing.members) != (str(me_address), all_members):
        raise HaFailure(
            f"{directory} belongs to member {existing.me} of {', '.join(existing.members)} already. To change that: "
            f"dgpu ha leave, then dgpu ha init; to change another machine: dgpu ha replace-member"
        )
    find_etcd()
    with directory_lock(directory):
        issue_own(directory, me_address)
        if existing is None:
            files.write(
                Member(
                    cluster=secrets.token_hex(8),
                    role="scheduler",
                    me=str(me_address),
                    members=all_members,
                    first_peers=(str(me_address),),
                    is_first=True,
                )
            )
        with running_member(directory):
            return _take_over(directory, files, is_new=existing is None)


@contextmanager
def running_member(directory: Path) -> Iterator[EngineCluster]:
    """The member of this directory runs inside, and its cluster answers."""
    set_up_logging(Logging(level="warning"))  # a command prints its result to stdout, nothing else
    supervisor = MemberSupervisor(directory)
    supervisor.start()
    try:
        cluster = EngineCluster(supervisor.files, (supervisor.member.me,))
        _until_it_answers(cluster, supervisor)
        yield cluster
    finally:
        supervisor.stop()


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """No scheduler uses the directory inside."""
    try:
        lock = FolderLock(directory)
    except JournalLocked as error:
        raise HaFailure(f"{error}. Stop the scheduler first; tasks go on running") from error
    except OSError as error:
        raise HaFailure(f"{directory} cannot be used: {error.strerror}") from error
    try:
        yield
    finally:
        lock.close()


def _until_it_answers(cluster: EngineCluster, supervisor: MemberSupervisor) -> None:
    give_up_at_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            cluster.members()
        except EngineSilent as error:
            if supervisor.refused:
                raise HaFailure(supervisor.refused) from None
            if time.monotonic() > give_up_at_s:
                raise HaFailure(f"{error}. The log of the engine: {supervisor.files.log}") from error
            time.sleep(_PAUSE_S)
        else:
            return


def _take_over(directory: Path, files: MemberFiles, *, is_new: bool) -> Initiated:
    member = files.member()
    settings = engine_settings(files, (member.me,))
    cluster_id, index, epoch, tasks = "", 0, 0, 0
    try:
        if (directory / JOURNAL_FOLDER).is_dir():
            state, index = readable_state(directory)
            cluster_id, epoch, tasks = state.cluster_id, state.epoch, len(state.tasks)
        if index:
            engine, store = EtcdEngine(settings), Founder(settings)
            try:
                engine.identify(cluster_id)
                content = encode_snapshot(state, index=index, epoch=epoch)
                founded = store.found(content, index=index, epoch=epoch)
                if founded.head.index == index:
                    # The engine's hash begins here, so the local copy is compared from here on.
                    write_checkpoint(directory, Checkpoint(index=index, chain=founded.head.chain))
                    _note_output(directory, epoch)
                is_new |= founded.is_new
            finally:
                engine.close()
                store.close()
    except (EngineError, NoSpace, JournalError) as error:
        raise HaFailure(str(error)) from error
    return Initiated(
        directory=str(directory),
        me=member.me,
        members=member.members,
        cluster_id=cluster_id,
        index=index,
        epoch=epoch,
        tasks=tasks,
        new=is_new,
    )


def _note_output(directory: Path, epoch: int) -> None:
    """Without it, the first scheduler would ask others for output of the time when it was alone."""
    folder = directory / OUTPUT_FOLDER
    make_folder(folder)
    Wholeness(folder).on_founded(epoch)


def _checked(members: Sequence[str], me: str) -> tuple[MemberAddress, tuple[str, ...]]:
    if why := why_not_members(members):
        raise HaFailure(f"members: {why}")
    try:
        mine = MemberAddress.parse(me)
    except ValueError as error:
        raise HaFailure(f"me: {error}") from None
    addresses = tuple(str(MemberAddress.parse(each)) for each in members)
    if str(mine) not in addresses:
        raise HaFailure(f"me: {mine} is none of the members {', '.join(addresses)}")
    return mine, addresses
