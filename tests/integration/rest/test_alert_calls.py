"""The calls on alerts: lists, changes and refusals."""

from __future__ import annotations

import asyncio
import datetime as dt
import json

import pytest

from alert_receivers import eventually
from dgpu.client import AsyncClient, BadRequest, Client, NotFound, Refused
from dgpu.core.commands import LoseNode
from dgpu.core.model.ids import NodeId
from dgpu.journal.journal import Room
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.alerts.records import load
from dgpu.service.alerts.values import AlertTimes, MachineOptions
from rest_world import RestWorld

ROOT = "/api/v1/alerts"
QUICK = AlertOptions(
    interval_ms=50, machine=MachineOptions(times=AlertTimes(resolve_after_ms=50, group_wait_ms=50))
)
SELDOM = AlertOptions(interval_ms=3_600_000)


@pytest.fixture
def world(tmp_path):
    with RestWorld(tmp_path, alerts=QUICK) as running:
        running.add_node("n1")
        running.add_node("n2")
        yield running


@pytest.fixture
def fired(world):
    """Both nodes are lost, one after the other."""
    for name in ("n1", "n2"):
        world.execute(LoseNode(node_id=NodeId(name), reason="silent"))
        eventually(
            lambda node=name: [
                each for each in world.ask("GET", ROOT).body["alerts"] if each["subject"] == node
            ]
        )
    return world


def test_alerts_are_listed_newest_first_and_filtered(fired):
    answer = fired.ask("GET", ROOT).body
    assert [(each["id"], each["subject"], each["state"]) for each in answer["alerts"]] == [
        ("alert-2", "n2", "firing"),
        ("alert-1", "n1", "firing"),
    ]
    assert (answer["total"], answer["firing"], answer["pending"], answer["resolved"]) == (2, 2, 0, 0)
    assert fired.ask("GET", f"{ROOT}?limit=1").body["total"] == 2
    assert len(fired.ask("GET", f"{ROOT}?limit=1").body["alerts"]) == 1
    assert fired.ask("GET", f"{ROOT}?state=resolved").body["total"] == 0
    assert fired.ask("GET", f"{ROOT}?state=open&rule=agent_offline").body["total"] == 2
    assert fired.ask("GET", f"{ROOT}?rule=gpu_error").body["total"] == 0
    one = fired.ask("GET", f"{ROOT}/alert-1").body
    assert one == answer["alerts"][1]
    assert one["severity"] == "critical"
    assert one["facts"]["node"] == "n1"
    fired.add_node("n1")
    (gone,) = eventually(lambda: fired.ask("GET", f"{ROOT}?state=resolved").body["alerts"])
    assert gone["id"] == "alert-1"
    assert gone["resolved_at"] > gone["firing_since"] >= gone["pending_since"]


def test_an_acknowledgement_is_kept_and_refused_once_the_alert_is_over(fired):
    reply = fired.ask("POST", f"{ROOT}/1/acknowledge", {"comment": "looking"})
    assert (reply.status, reply.body["comment"]) == (200, "looking")
    assert fired.ask("GET", f"{ROOT}/1").body["acknowledged_at"]
    fired.add_node("n1")
    eventually(lambda: fired.ask("GET", f"{ROOT}?state=resolved").body["alerts"])
    over = fired.ask("POST", f"{ROOT}/1/acknowledge", {})
    assert (over.status, over.body["code"]) == (409, "alert_not_open")


def test_a_silence_is_made_seen_and_ended(fired):
    made = fired.ask("POST", f"{ROOT}/silences", {"rule": "agent_offline", "subject": "n1", "seconds": 60})
    assert made.status == 201
    assert made.body["subject"] == "n1"
    assert fired.ask("GET", f"{ROOT}/alert-1").body["silenced_until"] == made.body["until"]
    assert fired.ask("GET", f"{ROOT}/alert-2").body["silenced_until"] is None
    assert fired.ask("GET", f"{ROOT}/silences").body == {"total": 1, "silences": [made.body]}
    assert fired.ask("GET", f"{ROOT}/silences/{made.body['id']}").body == made.body
    assert fired.ask("DELETE", f"{ROOT}/silences/{made.body['id']}").status == 200
    assert fired.ask("GET", f"{ROOT}/alert-1").body["silenced_until"] is None
    assert fired.ask("DELETE", f"{ROOT}/silences/{made.body['id']}").status == 404


def kept_after_a_restart(world):
    return load(world.run(world.runtime.read(lambda state: dict(state.alert_records)))).alerts


@pytest.fixture
def quiet(tmp_path):
    """Checks are made by the test, so that no other code writes."""
    with RestWorld(tmp_path, alerts=SELDOM) as running:
        for name in ("n1", "n2"):
            running.add_node(name)
            running.execute(LoseNode(node_id=NodeId(name), reason="silent"))
        running.run(running.alerts.look())
        yield running


def test_what_a_full_disk_cannot_keep_is_refused_and_not_done(quiet):
    """A silence that a restart would lose lets the alarm ring at night, although a user relied on the silence."""
    made = quiet.ask(
        "POST", f"{ROOT}/silences", {"rule": "agent_offline", "subject": "n1", "seconds": 60}
    ).body
    asked = [
        ("POST", f"{ROOT}/silences", {"rule": "*", "seconds": 60}),
        ("POST", f"{ROOT}/alert-1/acknowledge", {"comment": "mine"}),
        ("DELETE", f"{ROOT}/silences/{made['id']}", None),
    ]
    quiet.journal.refusals = 1  # from then on, the disk has no room
    for method, path, body in asked:
        refused = quiet.ask(method, path, body)
        assert (refused.status, refused.body["code"]) == (507, "storage_full")
        assert "was not made" in refused.body["detail"]
    assert [each["id"] for each in quiet.ask("GET", f"{ROOT}/silences?ended=true").body["silences"]] == [
        made["id"]
    ]
    assert quiet.ask("GET", f"{ROOT}/alert-1").body["acknowledged_at"] is None
    quiet.journal.room = Room.OK
    for method, path, body in asked:
        eventually(lambda ask=(method, path, body): quiet.ask(*ask).status in {200, 201})
    kept = kept_after_a_restart(quiet)
    assert [each.rule for each in kept.silences] == ["*"]
    assert [each.comment for each in kept.firing] == ["mine", ""]


def test_only_silences_that_hold_are_listed_unless_all_are_asked_for(tmp_path):
    """Also before the next check, in which the machine ends them."""
    with RestWorld(tmp_path, alerts=SELDOM) as world:
        world.ask("POST", f"{ROOT}/silences", {"rule": "*", "seconds": 600})
        world.ask("POST", f"{ROOT}/silences", {"rule": "gpu_error", "seconds": 1})
        world.ask("POST", f"{ROOT}/silences", {"rule": "disk_full", "seconds": 600})
        world.ask("DELETE", f"{ROOT}/silences/3")

        def holding():
            return [each["id"] for each in world.ask("GET", f"{ROOT}/silences").body["silences"]]

        eventually(lambda: holding() == ["silence-1"])
        every = world.ask("GET", f"{ROOT}/silences?ended=true").body["silences"]
        assert {each["id"]: each["active"] for each in every} == {
            "silence-1": True,
            "silence-2": False,
            "silence-3": False,
        }
        assert world.ask("GET", f"{ROOT}/silences/3").body["active"] is False
        assert world.ask("DELETE", f"{ROOT}/silences/3").status == 404
        wrong = world.ask("GET", f"{ROOT}/silences?ended=maybe")
        assert (wrong.status, wrong.body["errors"][0]["path"]) == (400, "ended")
        with Client(world.url) as client:
            assert (len(client.alert_silences()), len(client.alert_silences(ended=True))) == (1, 3)


def test_a_silence_ends_by_itself(fired):
    until = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.5)).isoformat()
    assert fired.ask("POST", f"{ROOT}/silences", {"rule": "*", "until": until}).status == 201
    eventually(lambda: fired.ask("GET", f"{ROOT}/silences").body["total"] == 0)
    assert fired.ask("GET", f"{ROOT}/alert-1").body["silenced_until"] is None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"rule": "nope", "seconds": 1}, "rule"),
        ({"seconds": 1}, "rule"),
        ({"rule": "*"}, "seconds"),
        ({"rule": "*", "seconds": 1, "until": "2100-01-01T00:00:00Z"}, "until"),
        ({"rule": "*", "seconds": 0}, "seconds"),
        ({"rule": "*", "seconds": True}, "seconds"),
        ({"rule": "*", "seconds": 1e12}, "seconds"),
        ({"rule": "*", "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"rule": "*", "until": "tomorrow"}, "until"),
        ({"rule": "*", "until": 7}, "until"),
        ({"rule": "*", "seconds": 1, "subject": ""}, "subject"),
        ({"rule": "*", "seconds": 1, "subject": "a\nb"}, "subject"),
        ({"rule": "*", "seconds": 1, "comment": "x" * 10_000}, "comment"),
        ({"rule": "*", "seconds": 1, "colour": 1}, "colour"),
    ],
)
def test_a_wrong_silence_is_refused_by_field_and_changes_nothing(world, body, path):
    reply = world.ask("POST", f"{ROOT}/silences", body)
    assert reply.status == 400
    assert path in [error["path"] for error in reply.body["errors"]]
    assert world.ask("GET", f"{ROOT}/silences").body["total"] == 0


def test_unknown_ids_states_and_fields_are_named(world):
    for path in ("alert-9", "9", "x", "alert-99999999999999999999", "..%2f"):
        assert world.ask("GET", f"{ROOT}/{path}").status == 404
    assert world.ask("POST", f"{ROOT}/9/acknowledge", {}).body["code"] == "unknown_alert"
    assert world.ask("GET", f"{ROOT}/silences/9").body["code"] == "unknown_silence"
    for query in ("state=on", "rule=x", "limit=0", "colour=1", "state=open&state=open"):
        reply = world.ask("GET", f"{ROOT}?{query}")
        assert (reply.status, reply.body["code"]) == (400, "invalid_query")
    assert world.ask("POST", f"{ROOT}/test", {"to": "me"}).status == 400
    assert world.ask("POST", f"{ROOT}/test", {}).body == {"targets": []}
    assert world.ask("POST", f"{ROOT}/silences", raw=b"{").body["code"] == "malformed_json"


def test_changes_come_on_the_stream_of_events_without_moving_its_place(world):
    with Client(world.url) as client:
        events = client.events()
        world.execute(LoseNode(node_id=NodeId("n1"), reason="silent"))
        lost = next(event for event in events if event.type == "agent_offline")
        seen = next(event for event in events if event.type == "alert")
        told = seen.facts
        assert (told["type"], told["change"], told["alert"]["subject"]) == ("alert", "firing", "n1")
        assert told["alert"] == world.ask("GET", f"{ROOT}/alert-1").body
        assert int(seen.id) >= int(lost.id)  # Last-Event-ID stays a place in the journal
        client.acknowledge_alert(1)
        again = next(event for event in events if event.type == "alert")
        assert again.facts["change"] == "acknowledged"
        events.close()


def test_a_storm_is_one_event_that_says_read_again(tmp_path):
    with RestWorld(tmp_path, alerts=QUICK) as world, Client(world.url) as client:
        names = [f"n{number}" for number in range(150)]
        for name in names:
            world.add_node(name, gpus=0)
        events = client.events()

        async def lose_all():
            await asyncio.gather(
                *(world.runtime.execute(LoseNode(node_id=NodeId(name), reason="silent")) for name in names)
            )

        world.run(lose_all())
        counted = 0
        while counted < 150:
            event = next(event for event in events if event.type == "alert")
            counted += event.facts["count"] if event.facts["change"] == "many" else 1
        events.close()
        assert counted == 150
        assert world.ask("GET", ROOT).body["firing"] == 150


def test_the_sdk_has_every_call(fired):
    with Client(fired.url) as client:
        assert [alert.subject for alert in client.alerts(state="firing").alerts] == ["n2", "n1"]
        assert client.alert("alert-1").subject == "n1"
        assert client.acknowledge_alert(1, comment="me").comment == "me"
        silence = client.silence_alerts("agent_offline", subject="n2", seconds=60)
        assert [each.id for each in client.alert_silences()] == [silence.id]
        client.remove_silence(silence.id)
        assert client.alert_targets() == []
        assert client.test_alert_targets() == []
        with pytest.raises(NotFound):
            client.alert(99)
        with pytest.raises(BadRequest, match="rule"):
            client.silence_alerts("nope", seconds=1)

    async def same():
        async with AsyncClient(fired.url) as client:
            listed = await client.alerts(rule="agent_offline", limit=1)
            made = await client.silence_alerts("*", seconds=5)
            await client.remove_silence(made.id)
            return listed.total, await client.alert_silences(), await client.test_alert_targets()

    assert asyncio.run(same()) == (2, [], [])


def test_switched_off_they_say_so(tmp_path):
    with RestWorld(tmp_path) as world:
        reply = world.ask("GET", ROOT)
        assert (reply.status, reply.body["code"]) == (404, "alerts_off")


def test_the_description_names_the_fields(world):
    schema = json.loads(world.ask("GET", "/openapi.json").raw)
    body = schema["paths"][f"{ROOT}/silences"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"rule", "subject", "seconds", "until", "comment"} == set(body["properties"])


def test_too_many_silences_are_refused(world):
    for _ in range(1_000):
        world.alerts.machine.silence("*", "x", 10**15, "", 0)
    reply = world.ask("POST", f"{ROOT}/silences", {"rule": "*", "seconds": 5})
    assert (reply.status, reply.body["code"]) == (409, "too_many_silences")
    with Client(world.url) as client, pytest.raises(Refused):
        client.silence_alerts("*", seconds=5)
