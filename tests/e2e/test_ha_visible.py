"""Role, lag, epoch and the engine's health, as people see them while schedulers and members come and go."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import urllib.request

import pytest

from dgpu.cli.main import run
from e2e.conftest import PATIENCE_SECONDS, eventually
from e2e.ha_cluster import HaCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALERTS = """\
alerts:
  interval_seconds: 0.5
  rules:
    standby_lagging: {limit_seconds: 15, for_seconds: 0}
    engine_unavailable: {for_seconds: 5}
    engine_member_lost: {for_seconds: 0}
"""


@pytest.fixture
def cluster():
    with HaCluster(members=3, more=ALERTS, read_stale_max=120) as place:
        for name in "ab":
            place.start(name)
            eventually(lambda name=name: place.is_ready(name), f"{name} to be ready")
        eventually(lambda: {r["name"] for r in seen(place, "a")["schedulers"]} == {"a", "b"}, "a to see b")
        yield place


def seen(cluster, name):
    told = cluster.ask(name, "/api/v1/schedulers")
    return told[2] if told and told[0] == 200 else {"schedulers": []}


def row(cluster, of, by):
    return next((each for each in seen(cluster, by)["schedulers"] if each["name"] == of), None)


def alert(cluster, name, rule):
    told = cluster.ask(name, "/api/v1/alerts")
    found = told[2]["alerts"] if told and told[0] == 200 else []
    return next(
        (each["summary"] for each in found if each["rule"] == rule and each["state"] == "firing"), None
    )


def metrics(cluster, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http[name]}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def dgpu(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(each) for each in arguments])
    return code, out.getvalue(), err.getvalue()


def test_every_scheduler_shows_all_schedulers_and_members(cluster):
    for name in "ab":
        told = eventually(lambda name=name: both(cluster, name), f"{name} to see both")
        roles = {each["name"]: (each["role"], each["me"], each["healthy"]) for each in told["schedulers"]}
        assert roles == {"a": ("master", name == "a", True), "b": ("standby", name == "b", True)}
        assert {each["epoch"] for each in told["schedulers"]} == {1}
        assert sorted(each["state"] for each in told["members"]) == ["follower", "follower", "leader"]
        assert all(each["healthy"] and each["db_bytes"] and each["quota_bytes"] for each in told["members"])
        assert (told["members_may_stop"], told["engine"]) == (1, "")
        assert told["master"] == f"http://127.0.0.1:{cluster.http['a']}"
        ready = cluster.ask(name, "/ready")[2]
        assert ready["schedulers"] == [f"http://127.0.0.1:{cluster.http[each]}" for each in "ab"]
        found = metrics(cluster, name)
        assert found["engine_has_quorum"] == "1"
        assert found['scheduler_peer_is_master{scheduler="a"}'] == "1"
        assert float(found["scheduler_lag_seconds"]) < 30
        assert (
            sum(found[f'engine_member_healthy{{member="{m.url[7:]}"}}'] == "1" for m in cluster.etcd.members)
            == 3
        )


def both(cluster, name):
    told = seen(cluster, name)
    rows = told["schedulers"]
    good = len(rows) == 2 and {each["role"] for each in rows} == {"master", "standby"} and told["members"]
    # A standby announces itself for the first time before it has read the journal.
    return told if good and all(each["healthy"] and each["epoch"] == 1 for each in rows) else None


def test_status_of_the_engine_itself_and_of_a_server_agree(cluster):
    for name in "ab":
        eventually(lambda name=name: both(cluster, name), f"{name} to see both")
    for where in (
        ("--config", cluster.home / "b.yaml"),
        ("--server", f"http://127.0.0.1:{cluster.http['b']}"),
    ):
        code, out, err = dgpu("ha", "status", *where)
        assert code == 0, err
        lines = [line.split() for line in out.splitlines() if line]
        assert [line[:2] for line in lines[:3]] == [["SCHEDULER", "ROLE"], ["a", "master"], ["b", "standby"]]
        assert lines[3][0] == "MEMBER"
        assert len(lines) == 7
        assert "1 member may stop without stopping the cluster." in err
        code, out, _ = dgpu("ha", "status", *where, "-o", "json")
        assert {each["role"] for each in json.loads(out)["schedulers"]} == {"master", "standby"}
    code, out, _ = dgpu("top", "--once", "--server", f"http://127.0.0.1:{cluster.http['a']}")
    assert code == 0
    assert "schedulers: a master, b standby · epoch 1 · engine: 3 of 3 members" in out


def test_a_lost_standby_a_lost_member_and_a_takeover_are_alerts(cluster):
    cluster.kill("b")
    unseen = "Scheduler b has not been seen for "
    eventually(lambda: unseen in (alert(cluster, "a", "standby_lagging") or ""), "the alert about b")
    assert "not seen for" in row(cluster, "b", by="a")["trouble"]
    cluster.start("b")
    eventually(lambda: row(cluster, "b", by="a")["healthy"], "b to be seen again")
    eventually(lambda: alert(cluster, "a", "standby_lagging") is None, "the alert to end", 120)
    cluster.etcd.kill(2)
    told = eventually(lambda: alert(cluster, "a", "engine_member_lost"), "the alert about the member")
    assert "no other may stop" in told
    assert seen(cluster, "a")["members_may_stop"] == 0
    cluster.kill("a")
    eventually(lambda: cluster.is_master("b"), "b to lead")
    told = eventually(lambda: alert(cluster, "b", "master_changed"), "the alert about the takeover")
    assert told == "Scheduler b leads now (epoch 2); before, a did."


def test_without_a_majority_the_state_of_the_engine_is_still_told(cluster):
    for number in (1, 2):
        cluster.etcd.kill(number)
    eventually(lambda: alert(cluster, "a", "engine_member_lost"), "an alert that cannot be stored")
    told = eventually(lambda: alert(cluster, "a", "engine_unavailable"), "the alert about the engine")
    assert "no majority of the engine has answered for" in told
    for name in "ab":
        told = eventually(lambda name=name: seen(cluster, name).get("engine"), "the trouble")
        assert "no majority" in told
        eventually(lambda name=name: metrics(cluster, name)["engine_has_quorum"] == "0", f"{name} to tell it")
    code, out, err = dgpu("ha", "status", "--config", cluster.home / "a.yaml")
    assert code == 1
    assert "nothing can be stored" in err
    assert out.count("silent") == 2
    cluster.signal("a", signal.SIGTERM)  # it ends although its alerts cannot be stored
    assert cluster.services.pop("a").wait(PATIENCE_SECONDS) == 0
