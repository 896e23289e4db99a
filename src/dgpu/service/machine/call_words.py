"""Translates between messages of agents and values of the core: function calls and workers."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.commands import CallResult, ReportFinished, ReportWorkers, WorkerReport
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Outcome, Task
from dgpu.core.model.worker import MAX_MODELS, LoadedModel
from dgpu.service.machine.agent_words import MAX_AGO_MS, MAX_NUMBER, Malformed, line
from dgpu.wire.call_fields import MAX_INLINE_BYTES
from dgpu.wire.proto import agent_pb2 as pb

MAX_TRACEBACK_CHARS: Final = 64_000
_MAX_ERROR: Final = 1_000
_MAX_STATES: Final = 1_000
_ENCODINGS: Final = ("json", "msgpack")
_OUTCOMES: Final = {
    "returned": Outcome.EXITED,
    "raised": Outcome.RAISED,
    "cancelled": Outcome.STOPPED,
    "timeout": Outcome.TIMEOUT,
    "out_of_memory": Outcome.OUT_OF_MEMORY,
    "cannot_encode": Outcome.CANNOT_ENCODE,
    "worker_lost": Outcome.NODE_FAULT,
}


class _CallDetail(msgspec.Struct, frozen=True):
    """The part of a detail that a call order has."""

    entrypoint: str = ""
    args: bytes = b""
    args_ref: str = ""
    model_name: str = ""


_decode = msgspec.json.Decoder(_CallDetail).decode


def call(task: Task, lease: Lease) -> pb.Call:
    detail = _decode(task.detail)
    return pb.Call(
        lease_id=lease.id,
        task_id=task.id,
        attempt=task.attempt,
        worker_lease_id=lease.worker,
        nonce=lease.nonce,
        entrypoint=detail.entrypoint,
        args=detail.args,
        args_ref=detail.args_ref,
        model=detail.model_name,
        timeout_ms=task.timeout_ms,
    )


def returned(report: pb.Returned) -> ReportFinished:
    outcome = _OUTCOMES.get(report.outcome)
    error = line(report.error, _MAX_ERROR)
    if outcome is None:
        outcome = Outcome.NODE_FAULT
        error = f"the agent reported an unknown outcome: {line(report.outcome, 64)}"
    if len(report.result) > MAX_INLINE_BYTES or (report.ref and not is_digest(report.ref)):
        raise Malformed(
            f"the result of lease {report.lease_id} is larger than {MAX_INLINE_BYTES}, or its ref is no digest"
        )
    result = CallResult(
        result=report.result,
        encoding=report.encoding if report.encoding in _ENCODINGS else "",
        ref=report.ref,
        size=min(report.size or len(report.result), MAX_NUMBER),
        traceback=report.traceback[:MAX_TRACEBACK_CHARS],
        ran_ms=min(report.ran_ms, MAX_AGO_MS),
    )
    return ReportFinished(
        lease_id=LeaseId(report.lease_id),
        outcome=outcome,
        error=error,
        ago_ms=min(report.ago_ms, MAX_AGO_MS),
        returned=result,
    )


def workers(report: pb.Workers, now: int) -> ReportWorkers:
    return ReportWorkers(
        workers=tuple(
            WorkerReport(
                lease_id=LeaseId(state.lease_id),
                ready=state.ready,
                models=tuple(_model(model, now) for model in state.models[:MAX_MODELS]),
                down=line(state.down, _MAX_ERROR),
            )
            for state in report.states[:_MAX_STATES]
        )
    )


def _model(model: pb.WorkerModel, now: int) -> LoadedModel:
    return LoadedModel(
        name=line(model.name),
        loading=model.loading,
        used_at=max(0, now - model.used_ago_ms),
        memory_mb=min(model.memory_mb, MAX_NUMBER),
        load_ms=min(model.load_ms, MAX_AGO_MS),
    )


def is_digest(text: str) -> bool:
    return len(text) == 64 and all(each in "0123456789abcdef" for each in text)
