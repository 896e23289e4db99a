"""Records of the alert watch: kept, replaced, removed, bounded."""

from __future__ import annotations

import pytest

from dgpu.core.commands import KeepAlertRecords
from dgpu.core.decide import alerts as deciding
from dgpu.core.digest import digest
from dgpu.core.execute import execute
from dgpu.core.rejections import TooManyAlertRecords
from dgpu.core.state import ClusterState


def test_records_are_put_and_removed_together() -> None:
    state = ClusterState()
    execute(state, KeepAlertRecords(at=1, put={"a": b"1", "b": b"2"}))
    execute(state, KeepAlertRecords(at=2, put={"a": b"3"}, removed=("b", "never")))
    assert state.alert_records == {"a": b"3"}
    assert execute(state, KeepAlertRecords(at=3, removed=("b",))) == ()


def test_a_snapshot_and_a_fork_have_the_records_and_the_digest_counts_them() -> None:
    state = ClusterState()
    empty = digest(state)
    execute(state, KeepAlertRecords(at=1, put={"a": b"1"}))
    again = ClusterState.from_parts(state.parts())
    assert again.alert_records == {"a": b"1"}
    assert digest(again) == digest(state) != empty
    fork = state.fork()
    execute(fork, KeepAlertRecords(at=2, removed=("a",)))
    assert state.alert_records == {"a": b"1"}


@pytest.mark.patches_core
def test_records_are_bounded_in_number_and_size(monkeypatch) -> None:
    monkeypatch.setattr(deciding, "MAX_RECORDS", 2)
    monkeypatch.setattr(deciding, "MAX_RECORD_BYTES", 3)
    state = ClusterState()
    execute(state, KeepAlertRecords(at=1, put={"a": b"", "b": b""}))
    full = TooManyAlertRecords(limit=2)
    assert execute(state, KeepAlertRecords(at=1, put={"c": b""})) == full
    assert execute(state, KeepAlertRecords(at=1, put={"a": b"1234"})) == full
    assert execute(state, KeepAlertRecords(at=1, put={"c": b""}, removed=("a",))) != full
    assert sorted(state.alert_records) == ["b", "c"]
