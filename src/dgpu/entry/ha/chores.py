"""Upkeep of a managed engine: a joined member gets its vote, a full one gets room.

Each chore is done by one machine at a time: a learner asks for its own promotion, and all else is done by the machine
whose member leads the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

if TYPE_CHECKING:
    from dgpu.entry.ha.engine_cluster import EngineCluster, MemberState

_MIN_UNUSED_BYTES = 256 << 20
_MIN_UNUSED_SHARE = 0.5
NO_SPACE = "NOSPACE"

_log = structlog.get_logger("dgpu.ha")


class Promote(msgspec.Struct, frozen=True):
    member_id: int


class Defragment(msgspec.Struct, frozen=True):
    address: str


class MakeRoom(msgspec.Struct, frozen=True):
    """The engine refuses writes."""


Chore = Promote | Defragment | MakeRoom


def next_chore(states: Sequence[MemberState], me: str) -> Chore | None:
    mine = next((state for state in states if state.address == me and state.answers), None)
    if mine is None:
        return None
    if mine.is_learner:
        return Promote(mine.id)
    if not mine.is_leader:
        return None
    if any(NO_SPACE in alarm for state in states for alarm in state.alarms):
        return MakeRoom()
    # A member stops answering while it is defragmented: only if all the others can do without it.
    if not all(state.answers for state in states):
        return None
    wasteful = [state for state in states if _is_wasteful(state)]
    # The leader last: its turn costs an election.
    return Defragment(min(wasteful, key=lambda state: state.is_leader).address) if wasteful else None


def do_chore(cluster: EngineCluster, chore: Chore, members: Sequence[str]) -> None:
    """Raises HaFailure."""
    match chore:
        case Promote(member_id=member_id):
            if cluster.promote(member_id):
                _log.info("member_promoted")
        case Defragment(address=address):
            cluster.defragment(address)
            _log.info("member_defragmented", member=address)
        case MakeRoom():
            make_room(cluster, members)


def make_room(cluster: EngineCluster, members: Sequence[str]) -> None:
    """Compacts, defragments one member after the other, then lets the engine accept writes again."""
    cluster.compact()
    for address in members:
        if cluster.state(address).answers:
            cluster.defragment(address)
    cluster.disarm()
    _log.warning("engine_room_made", detail="the engine was full and accepts writes again")


def _is_wasteful(state: MemberState) -> bool:
    unused_bytes = state.db_bytes - state.used_bytes
    return unused_bytes > max(_MIN_UNUSED_BYTES, _MIN_UNUSED_SHARE * state.db_bytes)
