"""Requests that change tasks: each wrong field is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dgpu.wire.change_requests import decode_cancel, decode_nothing, decode_reason
from dgpu.wire.json_body import BadRequest


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (b'{"task_ids": ["task-1"], "bogus": 1}', ["bogus"]),
        (b'{"stat": "pending", "bogus": 1}', ["stat", "bogus"]),
        (b'{"task_ids": ["task-1"], "tenant": "lab"}', ["tenant"]),
        (b'{"name": 7}', ["name"]),
    ],
)
def test_a_refused_cancel_names_the_wrong_field(body: bytes, paths: list[str]) -> None:
    """A misspelt filter beside ids must not look like a wrong combination."""
    with pytest.raises(BadRequest) as caught:
        decode_cancel(body)
    assert [error.path for error in caught.value.errors] == paths


def test_a_cancel_takes_both_states_as_the_list_writes_them() -> None:
    assert decode_cancel(b'{"status": "pending,running"}').filters.status is None
    assert decode_cancel(b'{"status": "running"}').filters.status == "running"


@pytest.mark.parametrize("decode", [decode_reason, decode_nothing])
def test_an_order_without_fields_names_an_unknown_one(decode: Callable[[bytes], object]) -> None:
    """`{"resaon": ...}` must not drain a node without its reason, and the answer says what is wrong."""
    with pytest.raises(BadRequest) as caught:
        decode(b'{"resaon": "fan"}')
    assert [error.path for error in caught.value.errors] == ["resaon"]
    assert not decode(b"")
    assert not decode(b"{}")
