"""What the scheduler's machine knows of opening: values in clear for one start order, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from dgpu.core.model.ids import SecretId, TenantId
from dgpu.core.model.secrets import Secret


class CannotOpen(Exception):  # noqa: N818 - the name states the failure
    """The text says why, without any part of a value."""


class Opened(NamedTuple):
    """In clear. Its repr shows no value."""

    detail: bytes
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Opened({len(self.files)} files)"


# Takes a tenant, the detail of its task and all secrets. Raises CannotOpen.
Opener: TypeAlias = Callable[[TenantId, bytes, Mapping[SecretId, Secret]], Opened]
