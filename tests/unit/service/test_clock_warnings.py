"""Wall clocks that disagree are reported. Nothing else depends on them."""

from __future__ import annotations

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.core.model.wall_span import WallSpan
from dgpu.service.alerts.rules import OffClock, Readings, RuleSet, findings
from dgpu.service.machine.inputs import WallClockSet
from dgpu.wire.proto import agent_pb2 as pb

from .cluster import Bench, register

HOUR_MS = 3_600_000


def beat(wall_ms: int) -> pb.FromAgent:
    return pb.FromAgent(heartbeat=pb.Heartbeat(seq=1, wall_ms=wall_ms))


def clock_of(bench: Bench) -> int:
    return bench.scheduler.contact(NodeId("n1")).clock_ahead_ms


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 20_000, 3_650 * 24 * HOUR_MS])
def test_a_node_with_another_time_is_known_after_three_heartbeats(ahead_ms: int) -> None:
    bench = Bench()
    bench.say(1, register())
    for _ in range(2):
        bench.say(1, beat(bench.now + ahead_ms))
        assert clock_of(bench) == 0
    bench.say(1, beat(bench.now + ahead_ms))
    assert clock_of(bench) == ahead_ms
    bench.leave(1)
    assert clock_of(bench) == 0


def test_a_heartbeat_that_was_late_is_no_clock_that_is_behind() -> None:
    bench = Bench()
    bench.say(1, register())
    for late_ms in (200, 45_000, 30_000, 100, 60_000, 15_000, 50):
        bench.say(1, beat(bench.now - late_ms))
        assert abs(clock_of(bench)) < 1_000


def test_an_agent_that_does_not_tell_its_time_is_not_judged() -> None:
    bench = Bench()
    bench.say(1, register())
    for _ in range(5):
        bench.say(1, beat(0))
    assert clock_of(bench) == 0


def test_nodes_are_compared_with_the_wall_clock_that_is_followed() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.put(WallClockSet(span=WallSpan(boot_id="b", boot_offset_ms=0, wall_offset_ms=-40 * 24 * HOUR_MS)))
    bench.settle()
    for _ in range(3):
        bench.say(1, beat(bench.now - 40 * 24 * HOUR_MS))
    assert clock_of(bench) == 0


def test_the_alert_names_the_clock_and_by_how_much_it_is_off() -> None:
    clocks = (OffClock("scheduler", -40 * 24 * HOUR_MS), OffClock("n1", HOUR_MS), OffClock("n2", 9_999))
    found = {each.subject: each for each in findings(Readings(at=1, clocks=clocks), RuleSet())}
    assert set(found) == {"scheduler", "n1"}
    assert "set back by 40 days" in found["scheduler"].summary
    assert "node n1 is 60 minutes ahead" in found["n1"].summary
    assert found["n1"].facts == {"node": "n1", "seconds_ahead": 3600.0, "limit_seconds": 10.0}
    assert {each.rule for each in found.values()} == {"clock_skew"}
