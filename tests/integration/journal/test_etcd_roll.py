"""Schedulers announce themselves in a real etcd, and each member tells its state."""

from __future__ import annotations

import msgspec
import pytest

from dgpu.journal.announced import Announced
from dgpu.journal.engine import EngineUnavailable
from dgpu.journal.etcd.roll import Roll
from dgpu.service.leadership import peers as peers_module
from dgpu.service.leadership.peers import FORGET_MS, Peers
from dgpu.service.leadership.seen import ANNOUNCE_MS
from dgpu.service.options import OptionsRefused, SharedOptions
from etcd_cluster import EtcdCluster

pytestmark = pytest.mark.timeout(180)

A = Announced(
    name="a", http="http://a:8080", version="1", role="master", epoch=3, index=7, lag_ms=0, wall_ms=5_000
)
B = msgspec.structs.replace(A, name="b", http="http://b:8080", role="standby")


class Clocks:
    boot_id = "b"

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms, self.the_wall_ms = now_ms, wall_ms

    def since_boot_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.the_wall_ms


@pytest.fixture
def roll(etcd: EtcdCluster):
    made = Roll(etcd.settings())
    yield made
    made.close()


@pytest.fixture
def etcd(tmp_path):
    with EtcdCluster(tmp_path, members=1) as cluster:
        yield cluster


def test_rows_are_read_back_by_name_and_a_repeated_one_replaces_the_first(roll: Roll) -> None:
    for row in (B, A, msgspec.structs.replace(B, index=9)):
        roll.announce(row)
    rows = roll.schedulers()
    assert [row.announced for row in rows] == [A, msgspec.structs.replace(B, index=9)]
    assert rows[0].revision != rows[1].revision


def test_a_row_that_was_written_again_is_not_forgotten(roll: Roll) -> None:
    roll.announce(A)
    (old,) = roll.schedulers()
    roll.announce(A)
    roll.forget(old)
    (now,) = roll.schedulers()
    roll.forget(now)
    assert roll.schedulers() == []


def test_a_stopped_member_is_told_with_its_trouble(roll: Roll, etcd: EtcdCluster) -> None:
    (member,) = roll.members()
    assert (member.state, member.healthy, member.version != "", member.db_bytes > 0) == (
        "leader",
        True,
        True,
        True,
    )
    etcd.kill(0)
    (member,) = roll.members()
    assert (member.state, member.healthy, member.version) == ("silent", False, "")
    assert member.trouble
    with pytest.raises(EngineUnavailable):
        roll.schedulers()


def test_last_seen_counts_on_our_own_clock(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock ten years ahead or behind must not make a living scheduler look dead, or a dead one alive."""
    ten_years_ms = 315_360_000_000
    clocks = Clocks(now_ms=1_000_000, wall_ms=ten_years_ms)
    monkeypatch.setattr(peers_module, "ThisMachine", lambda: clocks)
    peers = Peers(SharedOptions(name="a", http=A.http, grpc=""), roll)
    far_ahead = msgspec.structs.replace(B, wall_ms=3 * ten_years_ms)
    roll.announce(far_ahead)
    exchange(peers)
    clocks.now_ms += 20_000
    exchange(peers)
    assert row_of(peers, "b").unseen_ms == 20_000
    roll.announce(msgspec.structs.replace(B, wall_ms=0))  # far behind
    exchange(peers)
    assert row_of(peers, "b").unseen_ms == 0


def test_a_scheduler_that_is_gone_for_a_day_is_forgotten(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(now_ms=1_000_000, wall_ms=B.wall_ms)
    monkeypatch.setattr(peers_module, "ThisMachine", lambda: clocks)
    peers = Peers(SharedOptions(name="a", http=A.http, grpc=""), roll)
    peers.refuse_taken_name()
    roll.announce(B)
    exchange(peers)
    clocks.now_ms += FORGET_MS + 1
    exchange(peers)
    exchange(peers)
    assert [row.announced.name for row in roll.schedulers()] == ["a"]


def test_the_name_of_a_scheduler_that_runs_is_refused(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module.time, "sleep", lambda _: roll.announce(B))
    roll.announce(B)
    later = Peers(SharedOptions(name="b", http="http://c:8080", grpc=""), roll)
    with pytest.raises(OptionsRefused, match=r"ha\.name: the scheduler at http://b:8080 .* name 'b', too"):
        later.refuse_taken_name()
    exchange(later)
    assert [row.announced for row in roll.schedulers()] == [B], "the refused one does not announce itself"
    Peers(SharedOptions(name="b", http=B.http, grpc=""), roll).refuse_taken_name()
    Peers(SharedOptions(name="c", http="http://c:8080", grpc=""), roll).refuse_taken_name()


def test_the_name_of_a_scheduler_that_ended_is_free(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed, or it moved to another address."""
    waited = []
    monkeypatch.setattr(peers_module.time, "sleep", waited.append)
    moved = Peers(SharedOptions(name="b", http="http://c:8080", grpc=""), roll)
    roll.announce(B)
    moved.refuse_taken_name()
    assert sum(waited) * 1_000 > ANNOUNCE_MS
    waited.clear()
    roll.announce(msgspec.structs.replace(B, role="stopped"))
    Peers(SharedOptions(name="b", http="http://d:8080", grpc=""), roll).refuse_taken_name()
    assert not waited, "it said that it stopped"


def exchange(peers: Peers) -> None:
    peers._exchange(peers._own())


def row_of(peers: Peers, name: str):
    return next(seen for seen in peers.schedulers() if seen.announced.name == name)
