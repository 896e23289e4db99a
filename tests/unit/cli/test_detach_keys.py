"""Ctrl-P Ctrl-Q detaches; every other key reaches the program, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpu.cli.detach_keys import DetachKeys


@pytest.mark.parametrize(
    ("typed", "passed", "detaches"),
    [
        ([b"ls\n"], b"ls\n", False),
        ([b"\x10\x11"], b"", True),
        ([b"a\x10", b"\x11b"], b"a", True),
        ([b"\x10\x10\x11"], b"\x10", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x11\x10"], b"\x11", False),
        ([b"\x10"], b"", False),
    ],
)
def test_keys(typed: list[bytes], passed: bytes, detaches: bool) -> None:
    keys = DetachKeys()
    assert b"".join(map(keys.feed, typed)) == passed
    assert keys.are_pressed is detaches


@given(st.lists(st.binary(max_size=20)))
def test_nothing_is_lost_without_the_two_keys(typed: list[bytes]) -> None:
    typed = [each.replace(b"\x11", b"q") for each in typed]
    keys = DetachKeys()
    passed = b"".join(map(keys.feed, typed)) + keys.feed(b"!")
    assert passed == b"".join(typed) + b"!"
