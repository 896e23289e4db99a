"""Responses about uploads."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class UploadAnswer(Answer, frozen=True, kw_only=True):
    sha256: str
    tenant_id: str
    size_bytes: int


class UploadRoom(Answer, frozen=True, kw_only=True):
    """The limits of uploads."""

    tenant_id: str
    max_bytes: int  # of one archive
    tenant_bytes: int  # of all archives of the tenant
    used_bytes: int
