"""Answers about functions: their results, and the workers that run them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a function has ended, or that it has not: then the status is pending or running."""

    task_id: str
    status: str
    # JSON, or msgpack in base64 if JSON cannot hold the value.
    result: Any = None
    encoding: Literal["json", "msgpack"] = "json"
    error: str = ""
    reason: str = ""
    traceback: str = ""
    ref: str = ""  # SHA-256 of a large result, which has a call of its own
    size: int = 0


class CallResults(msgspec.Struct, frozen=True, kw_only=True):
    results: list[CallResult]
    pending: int = 0


class ProgressAnswer(msgspec.Struct, frozen=True, kw_only=True):
    fraction: float
    text: str = ""
    at: str | None = None


class WorkerModelRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    loading: bool = False
    memory_mb: int = 0
    last_used_at: str | None = None


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    app: str
    tenant_id: str
    node: str | None = None
    gpus: list[int] = []
    status: Literal["starting", "warm", "busy"] = "starting"
    idle_since: str | None = None
    models: list[WorkerModelRow] = []
    running: str | None = None
    queued: int = 0


class WorkerList(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerRow]
