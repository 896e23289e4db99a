"""`dgpu ha status`: schedulers, members, and the end of the journal, as any machine of the cluster sees them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dgpu.entry.config_types import SchedulerConfig
from dgpu.entry.ha.engine_cluster import EngineCluster, EngineMember, MemberState, engine_settings
from dgpu.entry.ha.errors import EngineSilent, HaFailure
from dgpu.entry.ha.member_command import QUOTA_BYTES
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha_config import shared_options
from dgpu.journal.announced import Announced
from dgpu.journal.checkpoint import last_index
from dgpu.journal.engine import EngineError
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.roll import Roll
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.service.leadership.seen import SeenScheduler, with_one_master


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    state: str  # leader, follower, learner, silent, not joined, removed
    healthy: bool
    me: bool
    version: str = ""
    db_bytes: int = 0
    used_bytes: int = 0
    quota_bytes: int = 0
    alarms: tuple[str, ...] = ()
    trouble: str = ""


class SchedulerRow(msgspec.Struct, frozen=True, kw_only=True):
    """As the scheduler announced itself last."""

    name: str
    url: str
    role: str
    lag_ms: int | None
    epoch: int
    journal_index: int
    version: str
    last_seen_seconds: float  # by the wall clocks of both machines
    trouble: str = ""


class LeaderRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    http: str
    grpc: str


class HaStatus(msgspec.Struct, frozen=True, kw_only=True):
    me: str
    role: str
    has_quorum: bool
    members: tuple[MemberRow, ...]
    schedulers: tuple[SchedulerRow, ...] = ()
    leader: LeaderRow | None = None  # the scheduler that leads
    index: int = 0  # of the last committed group
    epoch: int = 0
    copied_index: int | None = None  # the last group in the copy of this machine's scheduler; None: a witness
    trouble: str = ""

    @property
    def survives(self) -> int:
        """Members that may stop now without stopping the cluster."""
        voting = [row for row in self.members if row.state not in {"not joined", "learner"}]
        healthy = sum(row.healthy for row in voting)
        return max(0, healthy - (len(voting) // 2 + 1)) if self.has_quorum else 0


def ha_status(directory: Path) -> HaStatus:
    """Raises HaFailure for a directory without a member; a silent engine is part of the answer."""
    files = MemberFiles(directory)
    member = files.member()
    cluster = EngineCluster(files, member.members)
    listed, trouble = None, ""
    try:
        listed = {each.address: each for each in cluster.members()}
    except EngineSilent as error:
        trouble = str(error)
    addresses = sorted({*member.members, *(listed or ())})
    rows = tuple(_row(cluster.state(each), (listed or {}).get(each), listed, member.me) for each in addresses)
    status = HaStatus(
        me=member.me, role=member.role, has_quorum=listed is not None, members=rows, trouble=trouble
    )
    if member.role == "scheduler":
        # Read before the head, so that the copy never seems to be ahead of it.
        status = msgspec.structs.replace(status, copied_index=last_index(directory))
    return _with_journal(status, engine_settings(files, member.members)) if listed is not None else status


def configured_status(config: SchedulerConfig) -> HaStatus:
    """Of the cluster that scheduler.yaml names. Raises HaFailure."""
    directory = Path(config.storage.snapshot_dir).expanduser().absolute()
    if config.ha.mode != "external":
        return ha_status(directory)
    try:
        shared = shared_options(config)
        if shared is None or shared.etcd is None:
            return ha_status(directory)
        return external_status(shared.etcd, directory)
    except (EngineError, OSError) as error:
        raise HaFailure(str(error)) from error


def external_status(settings: EtcdSettings, directory: Path) -> HaStatus:
    """Of an engine that others run. A silent engine is part of the answer."""
    roll = Roll(settings)
    try:
        found = roll.members()
    finally:
        roll.close()
    rows = tuple(
        MemberRow(
            address=each.address,
            state=each.state,
            healthy=each.healthy,
            me=False,
            version=each.version,
            db_bytes=each.db_bytes,
            quota_bytes=each.quota_bytes,
            alarms=each.alarms,
            trouble=each.trouble,
        )
        for each in found
    )
    has_quorum = any(row.healthy for row in rows)
    trouble = "" if has_quorum else "; ".join(row.trouble for row in rows if row.trouble)
    status = HaStatus(
        me="",
        role="scheduler",
        has_quorum=has_quorum,
        members=rows,
        copied_index=last_index(directory) if directory.exists() else None,
        trouble=trouble,
    )
    return _with_journal(status, settings) if has_quorum else status


def _row(
    state: MemberState, listed: EngineMember | None, all_listed: dict[str, EngineMember] | None, me: str
) -> MemberRow:
    if listed is None and all_listed is not None:
        word = "not joined"
    elif not state.answers:
        word = "silent"
    elif state.is_learner:
        word = "learner"
    else:
        word = "leader" if state.is_leader else "follower"
    return MemberRow(
        address=state.address,
        state=word,
        healthy=word in {"leader", "follower"} and not state.alarms,
        me=state.address == me,
        version=state.version,
        db_bytes=state.db_bytes,
        used_bytes=state.used_bytes,
        quota_bytes=QUOTA_BYTES if state.answers else 0,
        alarms=state.alarms,
        trouble="" if word == "not joined" else state.trouble,
    )


def _with_journal(status: HaStatus, settings: EtcdSettings) -> HaStatus:
    engine, roll = EtcdEngine(settings), Roll(settings)
    try:
        head, leader = engine.head(), engine.leader()
        seen = with_one_master([_seen(row.announced) for row in roll.schedulers()])
    except EngineError as error:
        return msgspec.structs.replace(status, trouble=str(error))
    finally:
        engine.close()
        roll.close()
    candidate = leader.candidate if leader is not None else None
    return msgspec.structs.replace(
        status,
        schedulers=tuple(map(_scheduler, seen)),
        index=head.index,
        epoch=head.epoch,
        leader=candidate and LeaderRow(name=candidate.name, http=candidate.http, grpc=candidate.grpc),
    )


def _seen(told: Announced) -> SeenScheduler:
    unseen_ms = max(0, time.time_ns() // 1_000_000 - told.wall_ms)
    return SeenScheduler(announced=told, unseen_ms=unseen_ms, is_me=False)


def _scheduler(seen: SeenScheduler) -> SchedulerRow:
    told = seen.announced
    return SchedulerRow(
        name=told.name,
        url=told.http,
        role=told.role,
        lag_ms=told.lag_ms,
        epoch=told.epoch,
        journal_index=told.index,
        version=told.version,
        last_seen_seconds=seen.unseen_ms / 1_000,
        trouble=seen.trouble,
    )
