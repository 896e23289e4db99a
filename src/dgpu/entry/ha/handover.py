"""`dgpu ha handover`: the scheduler that leads gives its place to another one."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dgpu.entry.ha.engine_cluster import PREFIX, engine_settings
from dgpu.entry.ha.errors import EngineSilent, HaFailure
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.journal.engine import EngineError, EngineUnavailable, Leader
from dgpu.journal.etcd.connection import Connection, NoLease
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.keys import Keys
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.wire.proto import etcd_pb2 as pb

_PATIENCE_S = 60.0
_PAUSE_S = 0.05


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    before: str  # URL
    after: str
    changed: bool  # False: no other scheduler was ready, and the same one leads again
    seconds: float


def hand_over(directory: Path, from_name: str = "") -> HandedOver | None:
    """Ends the leader's lease. Its commits compare the leader key, so nothing that it sends later counts.

    With `from_name`, only the lease of the scheduler with this name. None: it does not lead. Raises HaFailure.
    """
    files = MemberFiles(directory)
    settings = engine_settings(files, files.member().members)
    engine = EtcdEngine(settings)
    try:
        before = engine.leader()
        if from_name and (before is None or before.candidate.name != from_name):
            return None
        if before is None:
            raise HaFailure("no scheduler leads")
        began_s = time.monotonic()
        _end_lease(settings, before)
        after = _next_leader(engine, before)
    except EngineUnavailable as error:
        raise EngineSilent(
            "no majority of the members answers: start those that are silent (dgpu ha status names them)"
        ) from error
    except EngineError as error:
        raise HaFailure(str(error)) from error
    finally:
        engine.close()
    return HandedOver(
        before=before.candidate.http,
        after=after.candidate.http,
        changed=after.candidate.http != before.candidate.http,
        seconds=round(time.monotonic() - began_s, 3),
    )


def _end_lease(settings: EtcdSettings, leader: Leader) -> None:
    """Of this leader only: another one may have won meanwhile."""
    connection = Connection(settings)
    try:
        request = pb.RangeRequest(key=Keys(PREFIX).leader)
        found = connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
        if not found or found[0].create_revision != leader.fence:
            return  # it has ended by itself
        if not found[0].lease:
            raise HaFailure("the journal of this cluster is closed: dgpu ha leave was run")
        revoke = pb.LeaseRevokeRequest(ID=found[0].lease)
        try:
            connection.call("/etcdserverpb.Lease/LeaseRevoke", revoke, pb.LeaseRevokeResponse)
        except NoLease:
            return
    finally:
        connection.close()


def _next_leader(engine: EtcdEngine, before: Leader) -> Leader:
    give_up_at_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at_s:
        leader = engine.leader()
        if leader is not None and leader.fence != before.fence:
            return leader
        time.sleep(_PAUSE_S)
    raise HaFailure(f"no scheduler took over within {_PATIENCE_S:g} s: look at their logs")
