"""A new key: everything in the state is sealed again under it, in portions, while the scheduler works on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from dgpu.core.commands import Reseal
from dgpu.core.model.ids import SecretId, TaskId, TenantId
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.loop.runtime import Runtime
from dgpu.service.secrets.details import has_env, sealed_under_newest
from dgpu.service.secrets.opened import CannotOpen
from dgpu.service.secrets.vault import Vault
from dgpu.wire.secret_answers import Rotated

_PORTION_BYTES: Final = 1 << 20
_PORTION_TASKS: Final = 5_000


class NotRotated(Exception):  # noqa: N818 - the name states the failure
    """Old and new keys both stay in the key file: nothing is lost, and rotating again completes it."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.code)
        self.rejection = rejection


class _Old(NamedTuple):
    secrets: list[tuple[SecretId, Secret]]
    details: dict[tuple[TenantId, bytes], list[TaskId]]
    apps: dict[tuple[TenantId, bytes], list[str]]


async def rotate(runtime: Runtime, vault: Vault) -> Rotated:
    """Raises NotRotated, and OSError if the key file cannot be written."""
    await asyncio.to_thread(vault.begin_rotation)
    # A submit that was sealed before may commit later. Its key stays: see `end_rotation`.
    old = await runtime.read(_all_sealed)
    secrets = tasks = unreadable = 0
    portions = _portions(vault, old)
    while (portion := await asyncio.to_thread(next, portions, None)) is not None:
        command, failed = portion
        result = await runtime.execute(command)
        if isinstance(result, Rejection):
            raise NotRotated(result)
        secrets += len(command.secrets)
        tasks += sum(len(each.task_ids) for each in command.details)
        unreadable += failed
    dropped = await asyncio.to_thread(vault.end_rotation)
    return Rotated(secrets=secrets, tasks=tasks, unreadable=unreadable, dropped_keys=dropped)


def _all_sealed(state: ClusterState) -> _Old:
    details: dict[tuple[TenantId, bytes], list[TaskId]] = {}
    for task in state.tasks.values():
        if has_env(task.detail):
            details.setdefault((state.shapes[task.shape_id].tenant_id, task.detail), []).append(task.id)
    apps: dict[tuple[TenantId, bytes], list[str]] = {}
    for app in state.apps.values():  # also of those without a worker at the moment
        if has_env(app.spec.detail):
            apps.setdefault((app.spec.shape.tenant_id, app.spec.detail), []).append(app.id)
    return _Old(list(state.secrets.items()), details, apps)


def _portions(vault: Vault, old: _Old) -> Iterator[tuple[Reseal, int]]:
    """Commands of a bounded size, with the number of values that could not be opened."""
    secrets: list[ResealedSecret] = []
    details: list[ResealedDetail] = []
    size = count = failed = 0
    for item in _resealed(vault, old):
        if isinstance(item, ResealedSecret):
            secrets.append(item)
            size += len(item.sealed)
        elif isinstance(item, ResealedDetail):
            details.append(item)
            size, count = size + len(item.detail), count + len(item.task_ids)
        else:
            failed += item
        if size >= _PORTION_BYTES or count >= _PORTION_TASKS:
            yield Reseal(secrets=tuple(secrets), details=tuple(details)), failed
            secrets, details, size, count, failed = [], [], 0, 0, 0
    yield Reseal(secrets=tuple(secrets), details=tuple(details)), failed


def _resealed(vault: Vault, old: _Old) -> Iterator[ResealedSecret | ResealedDetail | int]:
    """A number stands for values that cannot be opened; they stay as they are."""
    for name, secret in old.secrets:
        if vault.is_current(secret.sealed):
            continue
        try:
            value = vault.open_secret(secret.tenant_id, secret.name, secret.sealed)
        except CannotOpen:
            yield 1
            continue
        sealed = vault.seal_secret(secret.tenant_id, secret.name, value)
        yield ResealedSecret(secret_id=name, version=secret.version, sealed=sealed)
    for (tenant_id, detail), task_ids in old.details.items():
        try:
            resealed = sealed_under_newest(vault, tenant_id, detail)
        except CannotOpen:
            yield len(task_ids)
            continue
        for start in range(0, len(task_ids) if resealed != detail else 0, _PORTION_TASKS):
            yield ResealedDetail(task_ids=tuple(task_ids[start : start + _PORTION_TASKS]), detail=resealed)
    for (tenant_id, detail), app_ids in old.apps.items():
        try:
            resealed = sealed_under_newest(vault, tenant_id, detail)
        except CannotOpen:
            yield len(app_ids)
            continue
        if resealed != detail:
            yield ResealedDetail(task_ids=(), detail=resealed, app_ids=tuple(app_ids))
