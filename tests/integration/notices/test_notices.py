"""Messages about tasks, to real receivers: when they come, what they hold, and what survives a restart."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
import structlog.testing

from alert_receivers import MailServer, WebhookServer, eventually, serving
from dgpu.core.commands import Command, KeepAlertRecords
from dgpu.journal.memory import MemoryDisk
from dgpu.service.alerts.targets import Target
from dgpu.service.notices.reach import NoticeOptions, TaskTarget
from rest_world import RestWorld

WORD = "s3cret-path"


@pytest.fixture
def web():
    server = WebhookServer()
    with serving(server):
        yield server


def listed(url: str, name: str = "hook", *, tenants: tuple[str, ...] = (), **more) -> NoticeOptions:
    kind = "webhook" if url.startswith("http") else "apprise"
    target = Target(name=name, kind=kind, url=url)
    return NoticeOptions(targets=(TaskTarget(target=target, tenants=tenants),), **more)


def told(web) -> list[tuple[str, str, str]]:
    return [(each.body["event"], each.body["task_id"], each.body["status"]) for each in web.received]


def test_start_end_and_failure_are_told_as_asked(tmp_path, web) -> None:
    with RestWorld(tmp_path, notices=listed(f"{web.url}/{WORD}")) as world:
        world.add_node("n1", gpus=2)
        world.connect_agent("n1")
        world.submit(notify="start,end=hook", name="train")
        world.submit(notify=["fail=hook"])
        eventually(lambda: len(world.read(lambda state: state.leases)) == 2)
        world.finish_running()
        eventually(lambda: len(web.received) == 2)
        assert told(web) == [("start", "task-1", "running"), ("end", "task-1", "success")]
        body = web.received[1].body
        assert body["summary"] == "task-1 (train) ended with success"
        assert (body["exit_code"], body["node"], web.received[1].headers["x-dgpu-event"]) == (0, "n1", "task")
        world.submit(notify="fail=hook")
        eventually(lambda: world.read(lambda state: state.leases))
        world.finish_running(exit_code=3)
        eventually(lambda: len(web.received) == 3)
        assert told(web)[2] == ("end", "task-3", "failed")
        shown = world.ask("GET", "/api/v1/tasks/task-1")
        assert shown.body["notify"] == ["start,end=hook"]
        assert WORD.encode() not in shown.raw


def test_an_array_sends_one_message(tmp_path, web) -> None:
    with RestWorld(tmp_path, notices=listed(web.url)) as world:
        world.add_node("n1", gpus=4)
        world.connect_agent("n1")
        world.submit(array="0-3", notify="hook")
        eventually(lambda: len(world.read(lambda state: state.leases)) == 4)
        world.finish_running(exit_code=1)
        (posted,) = eventually(lambda: web.received)
        assert posted.body["summary"] == "array task-1 ended: 4 of 4 tasks did not succeed"
        world.submit(notify="hook", held=True)
        world.ask("DELETE", "/api/v1/tasks/task-5")
        eventually(lambda: len(web.received) == 2)
        assert told(web)[1] == ("end", "task-5", "cancelled")


def test_an_unsent_message_survives_a_restart(tmp_path, web) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/{WORD}"
    disk = MemoryDisk()
    with structlog.testing.capture_logs() as log:
        with RestWorld(tmp_path, notices=listed(closed), disk=disk, follower=False) as world:
            world.submit(notify="hook", held=True)
            world.ask("DELETE", "/api/v1/tasks/task-1")
            eventually(lambda: any(line["event"] == "notice_failed" for line in log))
        assert WORD.encode() not in bytes(disk.segment)
        with RestWorld(tmp_path, notices=listed(web.url), disk=disk, follower=False) as again:
            eventually(lambda: told(web) == [("end", "task-1", "cancelled")])
            eventually(lambda: not again.read(lambda state: state.alert_records))
    assert WORD not in str(log)


def test_the_end_does_not_wait_for_an_engine_without_majority(tmp_path, web, monkeypatch) -> None:
    """The scheduler would have to be killed."""
    with RestWorld(tmp_path, notices=listed(web.url)) as world:
        execute = world.runtime.execute

        def stalled(command: Command) -> asyncio.Future:
            is_after_sending = isinstance(command, KeepAlertRecords) and command.removed
            return world.loop.create_future() if is_after_sending else execute(command)

        monkeypatch.setattr(world.runtime, "execute", stalled)
        world.submit(notify="hook", held=True)
        world.ask("DELETE", "/api/v1/tasks/task-1")
        eventually(lambda: web.received)
        eventually(lambda: not world.notices._unsent)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 20


def test_a_secret_of_the_tenant_is_a_target(tmp_path, web) -> None:
    with RestWorld(tmp_path, notices=NoticeOptions(secrets="all")) as world:
        world.ask("PUT", "/api/v1/tenants/default/secrets/mine", {"value": f"{web.url}/{WORD}"})
        world.submit(notify="mine", held=True)
        world.ask("DELETE", "/api/v1/tasks/task-1")
        (posted,) = eventually(lambda: web.received)
        assert posted.path.endswith(WORD)


def test_mail_goes_out_by_apprise(tmp_path) -> None:
    mail = MailServer()
    with serving(mail):
        url = f"mailto://localhost:{mail.port}?from=dgpu@localhost&to=ann@localhost&mode=insecure"
        with RestWorld(tmp_path, notices=listed(url, "mail")) as world:
            world.submit(notify="mail", held=True, name="train")
            world.ask("DELETE", "/api/v1/tasks/task-1")
            (letter,) = eventually(lambda: mail.mails)
            assert "task-1 (train) ended with cancelled" in letter["subject"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (f"http://127.0.0.1:1/{WORD}", "its host has an address that is not public"),
        (f"http://[::ffff:10.0.0.1]/{WORD}", "its host has an address that is not public"),
    ],
)
def test_a_secret_cannot_reach_the_network_of_the_scheduler(tmp_path, value: str, words: str) -> None:
    """The scheduler is trusted on its machine: a tenant could give orders in its name."""
    with structlog.testing.capture_logs() as log, RestWorld(tmp_path, notices=NoticeOptions()) as world:
        world.ask("PUT", "/api/v1/tenants/default/secrets/mine", {"value": value})
        world.submit(notify="mine", held=True)
        world.ask("DELETE", "/api/v1/tasks/task-1")
        (line, *_) = eventually(lambda: [each for each in log if each["event"] == "notice_failed"])
        assert line["error"] == words
    assert WORD not in str(log)


@pytest.mark.parametrize(
    ("options", "value", "notify", "words"),
    [
        (
            NoticeOptions(),
            f"json://127.0.0.1:8080/{WORD}",
            "mine",
            "not a URL that tenants may use: https, or one of",
        ),
        (NoticeOptions(), f"not a url {WORD}", "mine", "not a URL that tenants may use"),
        (
            NoticeOptions(secrets="none"),
            f"https://example.org/{WORD}",
            "mine",
            "notify.secrets in scheduler.yaml",
        ),
        (NoticeOptions(), WORD, "other", "other is neither a target of this cluster nor a secret of default"),
        (
            listed("http://h/", tenants=("lab",)),
            WORD,
            "hook",
            "hook is neither a target of this cluster nor a secret",
        ),
        (
            NoticeOptions(),
            WORD,
            f"https://h/{WORD}",
            "the name of a target or of a secret that holds the URL",
        ),
        (NoticeOptions(), WORD, "stop=mine", "events: start, end, fail"),
    ],
)
def test_what_cannot_be_told_is_refused_at_submit(tmp_path, options, value, notify, words) -> None:
    with RestWorld(tmp_path, notices=options) as world:
        world.ask("PUT", "/api/v1/tenants/default/secrets/mine", {"value": value})
        refused = world.ask("POST", "/api/v1/tasks", {"command": "true", "notify": notify})
        assert refused.status in {400, 422}
        assert words in refused.body["detail"]
        assert refused.body["errors"][0]["path"] == "notify"
        assert WORD.encode() not in refused.raw
        assert not world.read(lambda state: state.tasks)


def test_services_for_tenants_have_no_host_in_their_url() -> None:
    """A host in the URL of a service would be an address that a tenant chooses."""
    import apprise

    from dgpu.service.notices.reach import PUBLIC_SERVICES

    known = set()
    for each in apprise.Apprise().details()["schemas"]:
        names = {*(each["protocols"] or ()), *(each["secure_protocols"] or ())} & PUBLIC_SERVICES
        known |= names
        assert not (names and any("host" in template for template in each["details"]["templates"])), names
    assert known == PUBLIC_SERVICES
