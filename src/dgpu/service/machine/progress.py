"""The progress that running calls report. It is only shown: the newest value of each call is in memory."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.core.state import ClusterState
from dgpu.service.machine.agent_words import line
from dgpu.wire.proto import agent_pb2 as pb

_MAX_AT_ONCE = 1_000
_SLACK = 256


class Progress(msgspec.Struct, frozen=True):
    permille: int
    text: str
    at: int


class ProgressBook:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._known: dict[LeaseId, Progress] = {}

    def note(self, node_id: NodeId, told: pb.Workers, now: int) -> None:
        for each in told.progress[:_MAX_AT_ONCE]:
            lease_id = LeaseId(each.lease_id)
            lease = self._state.leases.get(lease_id)
            if lease is not None and lease.worker and lease.node_id == node_id:
                self._known[lease_id] = Progress(min(each.permille, 1_000), line(each.text), now)
        if len(self._known) > 2 * len(self._state.leases) + _SLACK:
            self._known = {
                lease_id: known for lease_id, known in self._known.items() if lease_id in self._state.leases
            }

    def of(self, lease_id: LeaseId) -> Progress | None:
        return self._known.get(lease_id)
