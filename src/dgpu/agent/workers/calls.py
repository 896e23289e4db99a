"""Calls (function tasks) and states of workers, as values and on the wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

MAX_ERROR_CHARACTERS = 1_000
MAX_RESULT_BYTES = 4 << 20  # of all results in one message; a larger single result is sent alone

CallOutcome = Literal[
    "returned", "raised", "cancelled", "timeout", "out_of_memory", "cannot_encode", "worker_lost"
]


class CallOrder(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    worker_lease_id: LeaseId
    nonce: str = ""  # of the epoch that granted the lease
    cluster_id: str = ""
    entrypoint: str = ""
    args: bytes = b""
    args_ref: str = ""
    model: str = ""
    timeout_ms: int = 0  # 0: none


class ReturnedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call."""

    lease_id: LeaseId
    outcome: CallOutcome
    at_ms: int  # on the node's clock since boot
    result: bytes = b""
    encoding: str = ""
    ref: str = ""
    size: int = 0
    error: str = ""
    traceback: str = ""
    ran_ms: int = 0
    output_bytes: int = 0


class WorkerModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    loading: bool = False
    memory_mb: int = 0
    load_ms: int = 0
    used_at_ms: int = 0  # on the node's clock since boot


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    ready: bool = False
    models: tuple[WorkerModel, ...] = ()
    down: str = ""  # why it is being ended


class CallProgress(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    permille: int
    text: str


class WorkersSeen(msgspec.Struct, frozen=True, kw_only=True):
    """States that have changed, and the progress of calls."""

    states: tuple[WorkerState, ...] = ()
    progress: tuple[CallProgress, ...] = ()


def call_order(call: pb.Call, cluster_id: str) -> CallOrder:
    return CallOrder(
        lease_id=LeaseId(call.lease_id),
        task_id=TaskId(call.task_id),
        attempt=call.attempt,
        worker_lease_id=LeaseId(call.worker_lease_id),
        nonce=call.nonce,
        cluster_id=cluster_id,
        entrypoint=call.entrypoint,
        args=call.args,
        args_ref=call.args_ref,
        model=call.model,
        timeout_ms=call.timeout_ms,
    )


def returned_message(call: ReturnedCall, now_ms: int) -> pb.Returned:
    return pb.Returned(
        lease_id=call.lease_id,
        outcome=call.outcome,
        result=call.result,
        encoding=call.encoding,
        ref=call.ref,
        size=call.size,
        error=call.error[:MAX_ERROR_CHARACTERS],
        traceback=call.traceback,
        ran_ms=call.ran_ms,
        ago_ms=max(0, now_ms - call.at_ms),
        output_bytes=call.output_bytes,
    )


def workers_message(seen: WorkersSeen, now_ms: int) -> pb.Workers:
    return pb.Workers(
        states=[_state_message(state, now_ms) for state in seen.states],
        progress=[
            pb.Progress(lease_id=each.lease_id, permille=each.permille, text=each.text)
            for each in seen.progress
        ],
    )


def _state_message(state: WorkerState, now_ms: int) -> pb.WorkerState:
    models = [
        pb.WorkerModel(
            name=model.name,
            loading=model.loading,
            memory_mb=model.memory_mb,
            load_ms=model.load_ms,
            used_ago_ms=max(0, now_ms - model.used_at_ms),
        )
        for model in state.models
    ]
    return pb.WorkerState(lease_id=state.lease_id, ready=state.ready, models=models, down=state.down)


def fitting(returned: list[ReturnedCall], max_count: int) -> int:
    """How many of these ends fit into one message; at least one, if there is any."""
    room = MAX_RESULT_BYTES
    for number, call in enumerate(returned[:max_count]):
        room -= len(call.result) + len(call.traceback)
        if room < 0 and number:
            return number
    return min(len(returned), max_count)
