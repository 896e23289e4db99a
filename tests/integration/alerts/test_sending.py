"""Messages that really arrive: a webhook and a mail on loopback, and the behaviour while the target is down."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import socket

import pytest
import structlog

from alert_receivers import MailServer, WebhookServer, eventually, serving
from dgpu.core.commands import KeepAlertRecords, LoseNode, RegisterNode
from dgpu.core.model.ids import NodeId
from dgpu.journal.memory import MemoryDisk
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.alerts.outbox import SendingRules
from dgpu.service.alerts.targets import Target
from dgpu.service.alerts.values import AlertTimes, MachineOptions
from rest_world import RestWorld

pytestmark = pytest.mark.timeout(120)

QUICK = AlertTimes(resolve_after_ms=50, group_wait_ms=50)


def options(*targets, attempts=5, queue=10, retry_ms=50):
    return AlertOptions(
        interval_ms=50,
        machine=MachineOptions(times=QUICK),
        sending=SendingRules(
            timeout_ms=2_000, attempts=attempts, retry_ms=retry_ms, max_retry_ms=200, queue=queue
        ),
        targets=targets,
    )


def hook(server, **more):
    return Target(name="ops", kind="webhook", url=f"{server.url}/hook/T0ken?key=Geheim", **more)


@pytest.fixture
def web():
    server = WebhookServer()
    with serving(server):
        yield server


@pytest.fixture
def post():
    server = MailServer()
    with serving(server):
        yield server


@pytest.fixture
def log():
    with structlog.testing.capture_logs() as lines:
        yield lines


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def lose(world, *names):
    for name in names:
        world.execute(LoseNode(node_id=NodeId(name), reason="silent"))


def _node(name):
    return RegisterNode(node_id=NodeId(name), boot_id="b", cpus_milli=1_000, ram_mb=1_024, gpus=())


def ask(world, path, **more):
    return world.ask("GET", f"/api/v1/alerts{path}", **more).body


def test_a_lost_node_is_told_by_webhook_and_so_is_its_return(tmp_path, web):
    web.answers = [500, 503]  # the first attempts fail
    with RestWorld(tmp_path, alerts=options(hook(web, secret="shared"))) as world:
        world.add_node("n1")
        lose(world, "n1")
        eventually(lambda: len(web.bodies("firing")) >= 3)
        first, second, third = web.received[:3]
        assert first.raw == second.raw == third.raw
        assert len({posted.headers["x-dgpu-delivery"] for posted in (first, second, third)}) == 1
        signed = hmac.new(b"shared", third.raw, hashlib.sha256).hexdigest()
        assert third.headers["x-dgpu-signature"] == f"sha256={signed}"
        assert third.headers["content-type"] == "application/json"
        body = third.body
        assert (body["version"], body["type"], body["rule"], body["count"]) == (
            1,
            "alert",
            "agent_offline",
            1,
        )
        assert body["alerts"][0]["subject"] == "n1"
        assert body["severity"] == "critical"
        world.add_node("n1")
        (resolved,) = eventually(lambda: web.bodies("resolved"))
        assert resolved["alerts"][0]["id"] == body["alerts"][0]["id"]
        assert resolved["alerts"][0]["resolved_at"]
        (target,) = eventually(
            lambda: [each for each in ask(world, "/targets")["targets"] if each["sent"] == 2]
        )
        assert (target["failed"], target["queued"], target["dropped"]) == (2, 0, 0)


def test_two_hundred_lost_nodes_are_one_message(tmp_path, web):
    patient = AlertTimes(resolve_after_ms=50, group_wait_ms=3_000)
    quiet = AlertOptions(interval_ms=100, machine=MachineOptions(times=patient), targets=(hook(web),))
    names = [f"n{number}" for number in range(200)]
    with RestWorld(tmp_path, alerts=quiet) as world:

        async def lose_all():
            execute = world.runtime.execute
            await asyncio.gather(*(execute(_node(name)) for name in names))
            await asyncio.gather(
                *(execute(LoseNode(node_id=NodeId(name), reason="silent")) for name in names)
            )

        world.run(lose_all())
        (body,) = eventually(lambda: web.bodies("firing"))
        assert body["count"] == 200
        assert len(body["alerts"]) == 50
        assert ask(world, "?limit=1")["firing"] == 200


def test_a_mail_really_arrives(tmp_path, post):
    url = f"mailto://127.0.0.1:{post.port}?from=dgpu@example.org&to=ops@example.org&mode=insecure"
    with RestWorld(tmp_path, alerts=options(Target(name="mail", kind="apprise", url=url))) as world:
        world.add_node("n1")
        lose(world, "n1")
        (mail, *_) = eventually(lambda: post.mails)
        assert "agent_offline" in mail["Subject"]
        assert "critical" in mail["Subject"]
        assert "ops@example.org" in mail["To"]
        text = "".join(str(part.get_payload(decode=True)) for part in mail.walk() if not part.is_multipart())
        assert "Node n1 has been offline" in text
        assert "dgpu alerts ack alert-1" in text


def test_the_test_call_tells_of_each_target_how_it_went_and_nothing_secret(tmp_path, web, post, log):
    """A broken webhook and a mail server that is down, beside targets that work."""
    dead, mail = closed_port(), post.port
    targets = (
        hook(web),
        Target(name="gone", kind="webhook", url=f"http://u:Passw0rt@127.0.0.1:{dead}/T0ken"),
        Target(
            name="mail",
            kind="apprise",
            url=f"mailto://127.0.0.1:{mail}?from=a@x.org&to=b@y.org&mode=insecure",
        ),
        Target(
            name="no-mail",
            kind="apprise",
            url=f"mailto://user:Passw0rt@127.0.0.1:{dead}?from=a@x.org&to=b@y.org&mode=insecure",
        ),
    )
    with RestWorld(tmp_path, alerts=options(*targets)) as world:
        reply = world.ask("POST", "/api/v1/alerts/test", {})
        assert reply.status == 200
        told = {each["name"]: each for each in reply.body["targets"]}
        assert {name: each["ok"] for name, each in told.items()} == {
            "ops": True,
            "gone": False,
            "mail": True,
            "no-mail": False,
        }
        assert "refused" in told["gone"]["detail"].lower() or "connect" in told["gone"]["detail"].lower()
        assert (
            "refused" in told["no-mail"]["detail"].lower() or "connect" in told["no-mail"]["detail"].lower()
        )
        assert web.bodies("test")
        assert post.mails
        everything = reply.raw.decode() + json.dumps(log, default=str) + json.dumps(ask(world, "/targets"))
        for secret in ("T0ken", "Geheim", "Passw0rt"):
            assert secret not in everything
        failures = [line for line in log if line["event"] == "alert_test_failed"]
        assert {line["target"] for line in failures} == {"gone", "no-mail"}


def test_a_redirect_is_a_failure_and_is_not_followed(tmp_path, web):
    web.answers = [302]
    with RestWorld(tmp_path, alerts=options(hook(web))) as world:
        (told,) = world.ask("POST", "/api/v1/alerts/test", {}).body["targets"]
        assert told["ok"] is False
        assert "302" in told["detail"]
        assert [posted.path for posted in web.received] == ["/hook/T0ken?key=Geheim"]


def test_while_a_target_is_down_nothing_grows_and_its_failure_is_said(tmp_path, log):
    dead = Target(name="gone", kind="webhook", url=f"http://127.0.0.1:{closed_port()}/T0ken")
    with RestWorld(tmp_path, alerts=options(dead, attempts=3, queue=4)) as world:
        for number in range(8):
            world.add_node(f"n{number}")
        for number in range(8):  # one after the other
            before = ask(world, "/targets")["targets"][0]["failed"]
            lose(world, f"n{number}")
            eventually(lambda n=before: ask(world, "/targets")["targets"][0]["failed"] > n)
            assert ask(world, "/targets")["targets"][0]["queued"] <= 4
        (target,) = eventually(
            lambda: [each for each in ask(world, "/targets")["targets"] if each["queued"] == 0]
        )
        assert target["sent"] == 0
        assert target["dropped"] >= 1
        assert target["last_error"]
        assert "T0ken" not in json.dumps(target)
        assert len(world.alerts._tasks) <= 4
    events = [line["event"] for line in log]
    assert "alert_message_failed" in events
    assert "alert_message_dropped" in events
    assert "T0ken" not in json.dumps(log, default=str)


def test_a_restart_keeps_what_fires_who_acknowledged_it_and_what_was_not_sent(tmp_path, web):
    """The message could not be sent before the stop. It is sent once after it, and no message is repeated."""
    gone = closed_port()
    unreachable = Target(name="ops", kind="webhook", url=f"http://127.0.0.1:{gone}/")
    disk = MemoryDisk()
    before = options(unreachable, attempts=1_000, retry_ms=60_000)
    with RestWorld(tmp_path, alerts=before, disk=disk, follower=False) as world:
        world.add_node("n1")
        lose(world, "n1")
        eventually(lambda: [each for each in ask(world, "/targets")["targets"] if each["failed"]])
        world.ask("POST", "/api/v1/alerts/alert-1/acknowledge", {"comment": "mine"})
        world.ask("POST", "/api/v1/alerts/silences", {"rule": "disk_full", "seconds": 3600})
    assert str(gone).encode() not in bytes(disk.segment)  # no address of a target in the journal
    after = options(hook(web))  # a target of the same name: its messages go on
    with RestWorld(tmp_path, alerts=after, disk=disk, follower=False) as again:
        (told,) = eventually(lambda: web.bodies("firing"))
        assert told["alerts"][0]["subject"] == "n1"
        (alert,) = [each for each in ask(again, "")["alerts"] if each["subject"] == "n1"]
        assert (alert["id"], alert["comment"], alert["state"]) == ("alert-1", "mine", "firing")
        assert ask(again, "/silences")["total"] == 1


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"number": "x"}', b""])
def test_a_record_that_cannot_be_read_is_left_out_and_said(tmp_path, content, log):
    disk = MemoryDisk()
    with RestWorld(tmp_path, alerts=options(), disk=disk, follower=False) as world:
        world.ask("POST", "/api/v1/alerts/silences", {"rule": "disk_full", "seconds": 3600})
        world.execute(KeepAlertRecords(put={"silence/7": content}))
    with RestWorld(tmp_path, alerts=options(), disk=disk, follower=False) as again:
        assert ask(again, "/silences")["total"] == 1
    assert "alert_record_damaged" in [line["event"] for line in log]


def test_what_apprise_logs_stays_out_of_our_logs(tmp_path):
    """Apprise may log addresses and passwords. The test has its own listener: pytest's also gets dropped lines."""
    url = f"mailto://user:Passw0rt@127.0.0.1:{closed_port()}?from=a@x.org&to=b@y.org&mode=insecure"
    heard = []
    listening = logging.Handler()
    listening.emit = heard.append
    root = logging.getLogger()
    level = root.level
    root.addHandler(listening)
    root.setLevel(logging.DEBUG)
    try:
        with RestWorld(tmp_path, alerts=options(Target(name="mail", kind="apprise", url=url))) as world:
            (told,) = world.ask("POST", "/api/v1/alerts/test", {}).body["targets"]
            assert told["ok"] is False
    finally:
        root.setLevel(level)
        root.removeHandler(listening)
    assert [record for record in heard if record.name.startswith("apprise")] == []
    assert not any("Passw0rt" in record.getMessage() for record in heard)
