"""The messages with which an agent is turned away."""

from __future__ import annotations

from dgpu.core.model.ids import NodeId
from dgpu.core.rejections import GpuClaimed, Rejection
from dgpu.service.machine.outputs import HangUp, Output, Remark, Tell
from dgpu.wire.proto import agent_pb2 as pb


def refused(connection_id: int, reason: str) -> Tell:
    return Tell(connection_id=connection_id, message=pb.FromScheduler(refused=pb.Refused(reason=reason)))


def turned_away(connection_id: int, node_id: NodeId, reason: str) -> list[Output]:
    return [
        refused(connection_id, reason),
        HangUp(connection_id=connection_id, reason=reason),
        Remark(event="agent_refused", facts={"node": node_id, "reason": reason}),
    ]


def why_refused(result: Rejection | None) -> str:
    if isinstance(result, GpuClaimed):
        return f"GPU {result.gpu_id} belongs to node {result.holder}, which has registered it"
    return f"registration refused: {result.code}" if result else "registration failed inside the scheduler"
