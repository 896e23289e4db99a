"""Secrets of tenants. The state holds only ciphertext: the core has no key and never sees a value."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.ids import SecretId, TaskId, TenantId

MAX_SECRETS: Final = 10_000
MAX_TENANT_SECRETS: Final = 1_000
MAX_VALUE_BYTES: Final = 64 << 10
MAX_SEALED_BYTES: Final = MAX_VALUE_BYTES + 64  # with key id, nonce and tag

# The file of a secret with the credentials of an image's registry. No task can name it, and no task gets it.
REGISTRY_FILE: Final = ".registry"

_MARK: Final = b'"secrets"'  # the key in a detail, found without decoding it


class SecretUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task gets a secret: as a variable or as a file. Exactly one is set."""

    env: str = ""
    file: str = ""


class Secret(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    tenant_id: TenantId
    name: str
    sealed: bytes
    version: int = 1  # grows with every change of the value
    set_by: str = ""
    set_at: int = 0


class ResealedSecret(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    secret_id: SecretId
    version: int  # of the value that was sealed again
    sealed: bytes


class ResealedDetail(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    task_ids: tuple[TaskId, ...]  # tasks with this detail
    detail: bytes
    app_ids: tuple[str, ...] = ()  # apps whose workers get this detail


class _Names(msgspec.Struct, frozen=True):
    secrets: dict[str, msgspec.Raw] = {}


_decode = msgspec.json.Decoder(_Names).decode


def secret_id(tenant_id: TenantId, name: str) -> SecretId:
    """No id of a tenant contains a slash."""
    return SecretId(f"{tenant_id}/{name}")


def secret_names(detail: bytes) -> tuple[str, ...]:
    """Names of the secrets that a task uses."""
    return tuple(_decode(detail).secrets) if _MARK in detail else ()
