"""Memory estimates learned from runs, by tenant and model or command."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import TaskDetail

MAX_ESTIMATES: Final = 10_000  # a bound on memory; the least recently used one is dropped
_MAX_TITLE: Final = 120


class Estimate(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    tenant_id: TenantId
    model: str = ""  # either this
    command: str = (
        ""  # or this: its beginning, or the name of workers, for display; the key holds a hash of all of it
    )
    base_mb: int  # for a model: without atoms and the factor of the task type; for a command: all
    runs: int = 0  # runs with a known peak
    ooms: int = 0
    peak_mb: int = 0  # of the last run with a known peak
    updated_at: int = 0


def model_key(tenant_id: TenantId, model: str) -> str:
    return f"{tenant_id}/model/{model}"


def command_key(tenant_id: TenantId, detail: TaskDetail) -> str:
    words = detail.command if isinstance(detail.command, str) else "\0".join(detail.command)
    return f"{tenant_id}/command/{hashlib.sha256(words.encode()).hexdigest()[:24]}"


def app_key(tenant_id: TenantId, app_id: str) -> str:
    """For the workers of an app: they all have the same command."""
    return f"{tenant_id}/app/{app_id}"


def title(detail: TaskDetail) -> str:
    words = detail.command if isinstance(detail.command, str) else " ".join(detail.command)
    return " ".join(words.split())[:_MAX_TITLE]
