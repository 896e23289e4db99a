"""The file of a large result is closed in any case."""

from __future__ import annotations

import asyncio
import os

import pytest

from dgpu.service.rest.results import _Pieces


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stream_that_ends_early_or_never_starts_closes_its_file(tmp_path, steps) -> None:
    (tmp_path / "result").write_bytes(b"abc")
    descriptor = os.open(tmp_path / "result", os.O_RDONLY)
    pieces = _Pieces(descriptor)

    assert asyncio.run(_first(pieces, steps)) == (b"abc" if steps else b"")
    assert is_open(descriptor) is (steps < 2)
    del pieces
    assert not is_open(descriptor)


async def _first(pieces: _Pieces, steps: int) -> bytes:
    found = b""
    for _ in range(steps):
        found += await anext(pieces, b"")
    return found
