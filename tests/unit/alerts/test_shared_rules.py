"""Alerts about several schedulers and the engine of their journal."""

from __future__ import annotations

import msgspec

from dgpu.journal.announced import Announced, MemberHealth, may_stop, quota_used
from dgpu.service.alerts.rules import Readings, RuleSet, findings
from dgpu.service.alerts.shared_rules import SharedReadings
from dgpu.service.leadership.seen import MasterChange, SeenScheduler, with_one_master

B = Announced(
    name="b", http="http://b:8080", version="1", role="standby", epoch=3, index=7, lag_ms=900, wall_ms=0
)
GIB = 1 << 30


def look(**shared):
    readings = Readings(at=1_000, shared=SharedReadings(**shared))
    return {(found.rule, found.subject): found for found in findings(readings, RuleSet())}


def seen(unseen_ms=0, **changes):
    return (SeenScheduler(announced=msgspec.structs.replace(B, **changes), unseen_ms=unseen_ms, is_me=False),)


def member(name, **fields):
    return MemberHealth(address=name, **{"version": "3.4.23", "quota_bytes": 4 * GIB} | fields)


def lost(name):
    return MemberHealth(address=name, trouble="connection refused")


def test_a_standby_that_follows_is_no_alert():
    assert look(standbys=seen()) == {}


def test_each_reason_why_a_standby_could_not_take_over():
    """Nobody would notice until the master is gone."""
    for standbys, why in (
        (seen(unseen_ms=45_000), "has not been seen for 45 s"),
        (seen(lag_ms=31_000), "is 31 s behind"),
        (seen(lag_ms=None), "has not read the journal yet"),
        (seen(role="stopped"), "was stopped"),
    ):
        found = look(standbys=standbys)["standby_lagging", "b"]
        assert found.summary.startswith(f"Scheduler b {why}: it could not take over now.")
        assert standbys[0].trouble


def test_a_takeover_is_told_for_a_while():
    change = MasterChange(before="a", after="b", epoch=4, ago_ms=10)
    assert look(change=change)["master_changed", "cluster"].summary == (
        "Scheduler b leads now (epoch 4); before, a did."
    )
    assert look(change=change._replace(ago_ms=300_000)) == {}


def test_an_engine_without_majority_names_its_silent_members():
    found = look(
        engine_trouble="no majority of the engine has answered for 9 s",
        members=(member("m1", has_leader=False, trouble="it sees no leader"), lost("m2"), lost("m3")),
    )
    assert "do not answer: m2, m3." in found["engine_unavailable", "engine"].summary
    assert ("engine_member_lost", "m1") not in found


def test_a_lost_member_tells_how_many_more_may_stop():
    of_three = (member("m1", is_leader=True), member("m2"), lost("m3"))
    assert "no other may stop" in look(members=of_three)["engine_member_lost", "m3"].summary
    of_five = (*of_three, member("m4"), member("m5"))
    assert "1 more may stop" in look(members=of_five)["engine_member_lost", "m3"].summary


def test_the_engine_is_nearly_full_at_80_percent():
    almost = (member("m1", db_bytes=int(3.19 * GIB)),)
    assert look(members=almost) == {}
    full = look(members=(member("m1", db_bytes=int(3.21 * GIB)),))
    assert "uses 80% of its 4.0 GiB" in full["engine_quota", "m1"].summary
    assert quota_used(almost) is not None


def test_a_learner_has_no_vote():
    two = (member("m1", is_leader=True), member("m2"))
    assert may_stop(two) == 0
    assert may_stop((*two, member("m3", is_learner=True))) == 0
    assert may_stop((*two, member("m3"))) == 1


def test_a_member_with_an_alarm_is_not_healthy():
    full = member("m1", is_leader=True, alarms=("NOSPACE",))
    assert (full.healthy, full.answers, full.state) == (False, True, "leader")


def test_a_killed_master_leads_no_more_once_another_epoch_began():
    """Its last announcement stays for a day, so status and metrics showed two masters."""
    killed, leads = seen(role="master", epoch=3), seen(name="a", role="master", epoch=4)
    gone, master = with_one_master([*killed, *leads])
    assert (gone.announced.role, master.announced.role) == ("standby", "master")
    assert "it led" in gone.trouble
    assert not master.trouble
    assert with_one_master(killed) == list(killed), "nobody took over yet"
