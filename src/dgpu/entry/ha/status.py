"""`dgpu ha status`: members, the leader, and the end of the journal, as any machine of the cluster sees them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dgpu.entry.ha.engine_cluster import EngineCluster, EngineMember, MemberState, engine_settings
from dgpu.entry.ha.errors import EngineSilent
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.journal.checkpoint import last_index
from dgpu.journal.engine import EngineError
from dgpu.journal.etcd.engine import EtcdEngine


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    state: str  # leader, follower, learner, silent, not joined, removed
    healthy: bool
    me: bool
    version: str = ""
    db_bytes: int = 0
    used_bytes: int = 0
    alarms: tuple[str, ...] = ()
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
    return _with_journal(status, files, member.members) if listed is not None else status


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
        alarms=state.alarms,
        trouble="" if word == "not joined" else state.trouble,
    )


def _with_journal(status: HaStatus, files: MemberFiles, members: tuple[str, ...]) -> HaStatus:
    engine = EtcdEngine(engine_settings(files, members))
    try:
        head, leader = engine.head(), engine.leader()
    except EngineError as error:
        return msgspec.structs.replace(status, trouble=str(error))
    finally:
        engine.close()
    candidate = leader.candidate if leader is not None else None
    return msgspec.structs.replace(
        status,
        index=head.index,
        epoch=head.epoch,
        leader=candidate and LeaderRow(name=candidate.name, http=candidate.http, grpc=candidate.grpc),
    )
