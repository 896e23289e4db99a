"""Output of finished tasks, uploads, alerts and unsent messages survive a master that is killed and loses its files."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from alert_receivers import WebhookServer, serving
from dgpu.client.sync import Client
from e2e.conftest import eventually
from e2e.ha_cluster import HaCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASKS = 100
LINES = 40
SCRIPT = f'for line in $(seq {LINES}); do echo "$DGPU_TASK_ID line $line"; done'


@pytest.fixture
def cluster():
    with HaCluster() as place:
        place.start_all()
        yield place


def lose(cluster, name):
    """The machine is gone: the scheduler and its files."""
    cluster.kill(name)
    (cluster.home / name).rename(cluster.home / f"{name}.lost")


def run_tasks(cluster, name, count=TASKS):
    """Ids of tasks that have ended."""
    body = {"tasks": [{"command": SCRIPT, "gpu_count": 1} for _ in range(count)]}
    told = cluster.ask(name, "/api/v1/tasks/batch", body)
    assert told[0] == 201, told
    ids = told[2]["task_ids"]
    eventually(lambda: set(cluster.tasks(name).values()) == {"success"}, "all tasks to end", 180)
    return ids


def logs(cluster, name, task_id):
    url = f"http://127.0.0.1:{cluster.http[name]}/api/v1/tasks/{task_id}/logs"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def written(task_id):
    return "".join(f"{task_id} line {line}\n" for line in range(1, LINES + 1))


def wrong(cluster, name, ids):
    """Answers that are not the whole output. An answer that output is on its way is asked for again."""
    final = (
        eventually(lambda: _final(logs(cluster, name, task_id)), f"output of {task_id}")  # noqa: B023
        for task_id in ids
    )
    return [found for task_id, found in zip(ids, final, strict=True) if found != (200, written(task_id))]


def _final(answer):
    return None if answer[0] == 503 else answer


def on_node(cluster):
    """Output that the node has not deleted."""
    return [entry for entry in (cluster.home / "n1" / "output").iterdir() if entry.name.isdigit()]


class Large(NamedTuple):
    task_id: str
    content: bytes


def large_file(cluster):
    """Larger than everything that is on its way between node and client."""
    told = cluster.ask("a", "/api/v1/tasks", {"command": "seq 1 6000000 > big.txt", "gpu_count": 1})
    assert told[0] == 201, told
    task_id = told[2]["task_id"]
    eventually(lambda: cluster.tasks("a")[task_id] == "success", "the file")
    # Unlike a glob, it goes on if a directory disappears meanwhile.
    (path,) = (
        Path(place, "big.txt") for place, _, files in os.walk(cluster.home / "n1") if "big.txt" in files
    )
    return Large(task_id, path.read_bytes())


def test_output_and_uploads_from_before_the_kill_are_those_of_the_new_master(cluster, tmp_path):
    ids = run_tasks(cluster, "a")
    big = large_file(cluster)
    (tmp_path / "told.txt").write_text("from the upload\n")
    (tmp_path / "model.bin").write_bytes(os.urandom(3_000_000))
    client = Client([f"http://127.0.0.1:{port}" for port in cluster.http.values()])
    every_gpu, waiting = client.submit_many(
        [
            {"command": "sleep 1000", "gpu_count": 4},
            {"command": "cat told.txt", "gpu_count": 1, "upload": tmp_path},
        ]
    )
    coming = client.download(big.task_id, "big.txt")
    got = [next(coming)]
    lose(cluster, "a")
    eventually(lambda: cluster.is_master("b"), "b to take over")
    got += coming  # what broke with a continues at b
    assert b"".join(got) == big.content
    assert wrong(cluster, "b", ids) == []
    client.cancel(every_gpu)
    (ended,) = client.wait(waiting, timeout_seconds=120)
    assert ended.status == "success", ended
    assert client.logs(waiting) == "from the upload\n"


def test_a_node_deletes_output_only_when_a_second_scheduler_has_it(cluster):
    """The standby is stopped while tasks end: the node must keep everything for it."""
    cluster.signal("b", signal.SIGSTOP)
    ids = run_tasks(cluster, "a")
    eventually(lambda: "output_waiting_for_copy 100" in metrics(cluster, "a"), "a to have all output")
    assert len(on_node(cluster)) == TASKS
    lose(cluster, "a")
    cluster.signal("b", signal.SIGCONT)
    eventually(lambda: cluster.is_master("b"), "b to take over")
    assert wrong(cluster, "b", ids) == []


def test_output_is_on_two_schedulers_when_its_node_has_deleted_it(cluster):
    ids = run_tasks(cluster, "a")
    eventually(lambda: not on_node(cluster), "the node to delete its copies")
    cluster.kill("agent")
    lose(cluster, "a")
    assert wrong(cluster, "b", ids) == []
    eventually(lambda: cluster.is_master("b"), "b to take over")
    cluster.make_directory("a")
    cluster.start("a")
    eventually(lambda: cluster.is_ready("a"), "a to follow")
    eventually(lambda: wrong(cluster, "a", ids) == [], "a to have all copies")


def test_silences_acknowledgements_and_unsent_messages_are_those_of_the_new_master():
    web = WebhookServer()
    web.answers = [500] * 1_000
    with serving(web), HaCluster() as cluster:
        for name in "ab":
            with (cluster.home / f"{name}.yaml").open("a") as file:
                file.write(f'alerts: {{group_seconds: 1, webhooks: [{{name: ops, url: "{web.url}/"}}]}}\n')
        cluster.start_all()
        told = cluster.ask("a", "/api/v1/alerts/silences", {"rule": "disk_full", "seconds": 3600})
        assert told[0] == 201, told
        cluster.kill("agent")
        eventually(lambda: told_of_node(web), "a to try to tell that the node is gone")
        alert = eventually(lambda: of_node(cluster, "a"), "the alert")
        answer = cluster.ask("a", f"/api/v1/alerts/{alert['id']}/acknowledge", {"comment": "mine"})
        assert answer[0] == 200, answer
        lose(cluster, "a")
        web.received.clear()
        web.answers = []
        eventually(lambda: cluster.is_master("b"), "b to take over")
        (message,) = eventually(lambda: told_of_node(web), "b to send the message")
        assert message["alerts"][0]["id"] == alert["id"]
        kept = of_node(cluster, "b")
        assert (kept["id"], kept["comment"]) == (alert["id"], "mine")
        assert cluster.ask("b", "/api/v1/alerts/silences")[2]["silences"] == [told[2]]


def told_of_node(web):
    return [body for body in web.bodies("firing") if body["alerts"][0]["rule"] == "agent_offline"]


def of_node(cluster, name):
    found = cluster.ask(name, "/api/v1/alerts")[2]["alerts"]
    return next((alert for alert in found if alert["rule"] == "agent_offline"), None)


def metrics(cluster, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http[name]}/metrics", timeout=30) as answer:
        return answer.read().decode()
