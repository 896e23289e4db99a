"""Uploads: archives of projects that tasks run in, named by their SHA-256."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dgpu.wire.fields import Unacceptable

DIGEST = re.compile(r"[0-9a-f]{64}")
A_DIGEST = "the SHA-256 of an uploaded archive: 64 lowercase hexadecimal digits"
PIECE_BYTES = 512 * 1024
DEFAULT_MAX_BYTES = 1 << 30  # of one archive
MAX_ENTRIES = 200_000  # files, directories and links of one archive
MAX_UNPACKED_TIMES = 20  # an archive may not grow more than this many times; see max_unpacked_bytes

_MARK = b'"upload"'  # the key in a detail, found without decoding it


_ARGS_MARK = b'"args_ref"'


class _Detail(msgspec.Struct, frozen=True):
    upload: str = ""
    args_ref: str = ""


_decode = msgspec.json.Decoder(_Detail).decode


def upload_of(detail: bytes) -> str:
    """The upload of a task; empty: it has none."""
    return _decode(detail).upload if _MARK in detail else ""


def args_ref_of(detail: bytes) -> str:
    """The uploaded arguments of a function call; empty: it has none."""
    return _decode(detail).args_ref if _ARGS_MARK in detail else ""


def digest(value: Any) -> str:
    """The field `upload` of a task."""
    if type(value) is not str or not DIGEST.fullmatch(value):
        raise Unacceptable(A_DIGEST)
    return value


def max_unpacked_bytes(archive_bytes: int) -> int:
    """A small archive may hold text that compresses well; a large one must not fill the disk of a node."""
    return max(1 << 30, archive_bytes * MAX_UNPACKED_TIMES)
