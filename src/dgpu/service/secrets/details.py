"""The values of a task's variables and secrets: sealed in its detail, opened only for a start order."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dgpu.core.model.ids import SecretId, TenantId
from dgpu.core.model.secrets import Secret, secret_id
from dgpu.core.model.task import TaskDetail
from dgpu.service.secrets.opened import CannotOpen, Opened
from dgpu.service.secrets.vault import Vault

_SEALED_ENV: Final = b'"sealed_env"'
_ENV: Final = b'"env"'
_MARKS: Final = (_SEALED_ENV, b'"secrets"')  # keys in a detail, found without decoding it

_decode = msgspec.json.Decoder(TaskDetail).decode
_decode_env = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode
_encode_env = msgspec.json.Encoder(order="deterministic").encode  # equal variables give equal apps


def seal_env(vault: Vault, tenant_id: TenantId, env: Mapping[str, str]) -> str:
    return _text(vault.seal_env(tenant_id, _encode_env(env)))


def open_detail(
    vault: Vault, tenant_id: TenantId, detail: bytes, secrets: Mapping[SecretId, Secret]
) -> Opened:
    """Raises CannotOpen: the task cannot start."""
    if not any(mark in detail for mark in _MARKS):
        return Opened(detail, {})
    task = _decode(detail)
    if not (task.sealed_env or task.secrets):
        return Opened(detail, {})
    env = _open_env(vault, tenant_id, task) if task.sealed_env else dict(task.env)
    files: dict[str, bytes] = {}
    for name, use in task.secrets.items():
        value = _open_secret(vault, secrets.get(secret_id(tenant_id, name)), tenant_id, name)
        if use.file:
            files[use.file] = value
        else:
            env[use.env] = _variable(name, value)
    return Opened(_encode(replace(task, env=env, sealed_env="", secrets={})), files)


def has_env(detail: bytes) -> bool:
    return _ENV in detail


def sealed_under_newest(vault: Vault, tenant_id: TenantId, detail: bytes) -> bytes:
    """The detail with its values sealed under the newest key; older journals have them in clear. Raises CannotOpen."""
    task = _decode(detail)
    if not task.env or (task.sealed_env and vault.is_current(_bytes(task.sealed_env))):
        return detail
    env = _open_env(vault, tenant_id, task) if task.sealed_env else task.env
    return _encode(replace(task, env=dict.fromkeys(env, ""), sealed_env=seal_env(vault, tenant_id, env)))


def _open_env(vault: Vault, tenant_id: TenantId, task: TaskDetail) -> dict[str, str]:
    try:
        return _decode_env(vault.open_env(tenant_id, _bytes(task.sealed_env)))
    except CannotOpen as error:
        raise CannotOpen(f"cannot open its environment: {error}. Submit the task again in full") from None


def _open_secret(vault: Vault, secret: Secret | None, tenant_id: TenantId, name: str) -> bytes:
    remedy = f"To set it: dgpu secret set {name} -A {tenant_id}"
    if secret is None:
        raise CannotOpen(f"secret {name} of tenant {tenant_id} was deleted. {remedy}")
    try:
        return vault.open_secret(tenant_id, name, secret.sealed)
    except CannotOpen as error:
        raise CannotOpen(f"cannot open secret {name} of tenant {tenant_id}: {error}. {remedy}") from None


def _variable(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CannotOpen(
            f"secret {name} is binary and fits no variable. Use it as a file: --secret {name}:file"
        )
    return text


def _text(sealed: bytes) -> str:
    return base64.b64encode(sealed).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
