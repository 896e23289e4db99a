"""Two real schedulers on a real etcd, with a real agent: the master is killed, paused, and cut off from its journal."""

from __future__ import annotations

import collections
import http.client
import json
import signal
import subprocess
import sys
import time

import pytest

from dgpu.client.sync import Client
from e2e.conftest import eventually
from e2e.ha_cluster import HaCluster, Submitter
from e2e.test_kills import overlaps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEASE_SECONDS = 5
SERVICE = "/api/v1/services/web"
WAITING = "/api/v1/tasks?status=pending&limit=1"
JOB = """
import json, os, pathlib, time
import dgpu

@dgpu.task(timeout=300, max_workers=1)
def pid(home):
    with (pathlib.Path(home) / "begun").open("a") as begun:
        print(os.getpid(), file=begun)
    while not (pathlib.Path(home) / "go").exists():
        time.sleep(0.05)
    return os.getpid()

if __name__ == "__main__":
    calls = [pid.submit(os.getcwd())]
    pids = [calls[0].result()]
    calls.append(pid.submit(os.getcwd()))
    pids.append(calls[1].result())
    print(json.dumps([[call.task_id for call in calls], pids]))
"""


@pytest.fixture
def cluster():
    with HaCluster() as place:
        place.start_all()
        yield place


def submit(cluster, name, command):
    told = cluster.ask(name, "/api/v1/tasks", {"command": command, "gpu_count": 1})
    assert told is not None
    assert told[0] == 201, told
    return told[2]["task_id"]


def until_running(cluster, name, task_id):
    eventually(lambda: (cluster.task(name, task_id) or {}).get("status") == "running", f"{task_id} to run")


def serve(cluster, name):
    task = {"command": f"exec {sys.executable} -m http.server --bind 127.0.0.1 $DGPU_PORT", "gpu_count": 1}
    assert cluster.ask(name, SERVICE, {"task": task, "port": 8000}, method="PUT")[0] == 200
    return eventually(lambda: answering(cluster, name), "the service to answer")


def answering(cluster, name):
    """The replica of the service, once it answers through the proxy of this scheduler."""
    service = cluster.ask(name, SERVICE)[2]
    if service["ready"] != 1:
        return None
    host, _, port = service["url"].removeprefix("http://").rstrip("/").partition(":")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    try:
        connection.request("GET", "/", headers={"Host": f"{host}:{port}"})
        is_served = connection.getresponse().status == 200
    finally:
        connection.close()
    return service["replicas"][0]["task_id"] if is_served else None


class Calls:
    """A program that calls a function twice. The first call lasts until it is told to go on."""

    def __init__(self, cluster):
        self.home = cluster.home
        (self.home / "job.py").write_text(JOB)
        servers = ",".join(f"http://127.0.0.1:{port}" for port in cluster.http.values())
        env = {**cluster.env, "DGPU_SERVER": servers, "PYTHONPATH": str(self.home)}
        self.program = subprocess.Popen(
            [sys.executable, str(self.home / "job.py")],
            env=env,
            stdout=subprocess.PIPE,
            cwd=self.home,
            text=True,
        )
        eventually(self.begun, "the first call to begin")

    def begun(self):
        found = self.home / "begun"
        return found.read_text().split() if found.exists() else []

    def finish(self):
        """The ids of the calls, and the processes that ran them."""
        (self.home / "go").touch()
        out, _ = self.program.communicate(timeout=120)
        assert self.program.returncode == 0
        return json.loads(out)


def all_ended(cluster, name):
    tasks = cluster.tasks(name)
    return tasks if all(status not in {"pending", "running"} for status in tasks.values()) else None


def more_acknowledged(submitter, name, count):
    enough = submitter.by[name] + count
    eventually(lambda: submitter.failure or submitter.by[name] >= enough, f"{name} to acknowledge submits")


def test_killed_under_load_the_master_loses_nothing_and_its_tasks_continue(cluster):
    journal = cluster.home / "runs"
    long = submit(cluster, "a", "sleep 300")
    until_running(cluster, "a", long)
    replica = serve(cluster, "a")
    calls = Calls(cluster)
    submitter = Submitter(cluster, journal)
    submitter.start()
    more_acknowledged(submitter, "a", 20)
    cluster.kill("a")
    eventually(lambda: cluster.is_master("b"), "b to take over")
    more_acknowledged(submitter, "b", 20)
    submitter.enough.set()
    submitter.join(60)
    assert submitter.failure is None
    acknowledged = submitter.acknowledged
    assert len(set(acknowledged)) == len(acknowledged)
    eventually(lambda: cluster.node("b") == "ready", "the node to register with b")
    running = cluster.task("b", long)
    assert (running["status"], running["attempt"]) == ("running", 1)
    assert replica == eventually(lambda: answering(cluster, "b"), "the same replica behind b's proxy")
    eventually(
        lambda: cluster.ask("b", WAITING)[2]["total"] == 0, "no task to wait: an idle worker gives way", 180
    )
    called, pids = calls.finish()
    assert [str(pid) for pid in pids] == calls.begun(), "each ran once"
    assert len(set(pids)) == 1, "in the same process"
    assert cluster.ask("b", SERVICE, method="DELETE")[0] == 200
    worker = cluster.ask("b", "/api/v1/workers")[2]["workers"][0]["task_id"]
    cluster.ask("b", "/api/v1/tasks/cancel", {"task_ids": [long, worker]})
    ended = eventually(lambda: all_ended(cluster, "b"), "all tasks to end", 180)
    assert set(ended) - {long, replica, worker, *called} == set(acknowledged)
    assert collections.Counter(ended[task_id] for task_id in acknowledged) == {"success": len(acknowledged)}
    assert overlaps(journal.read_text().splitlines()) == []


def test_a_paused_master_steps_down_when_it_wakes_and_does_no_harm(cluster):
    journal = cluster.home / "runs"
    long = submit(cluster, "a", "sleep 300")
    until_running(cluster, "a", long)
    submitter = Submitter(cluster, journal)
    submitter.start()
    more_acknowledged(submitter, "a", 5)
    a, b = (f"http://127.0.0.1:{cluster.http[name]}" for name in "ab")
    client = Client([a, b])
    assert client.get(long).status == "running"
    cluster.signal("a", signal.SIGSTOP)
    # It accepts connections and says nothing: the client that used it so far leaves it and finds b.
    by_client = client.submit(command=f"echo $DGPU_SERVER > {cluster.home}/servers", gpu_count=1).task_id
    assert client.answered_by.url == b
    eventually(lambda: cluster.is_master("b"), "b to take over")
    eventually(lambda: cluster.node("b") == "ready", "the node to register with b")
    more_acknowledged(submitter, "b", 5)
    cluster.signal("a", signal.SIGCONT)
    eventually(lambda: cluster.is_ready("a") and not cluster.is_master("a"), "a to follow")
    more_acknowledged(submitter, "b", 5)
    submitter.enough.set()
    submitter.join(60)
    assert submitter.failure is None
    assert cluster.is_master("b")
    assert (cluster.task("b", long)["status"], cluster.task("b", long)["attempt"]) == ("running", 1)
    cluster.ask("b", "/api/v1/tasks/cancel", {"task_ids": [long]})
    ended = eventually(lambda: all_ended(cluster, "b"), "all tasks to end", 180)
    assert set(ended) - {long, by_client} == set(submitter.acknowledged)
    assert (cluster.home / "servers").read_text() == f"{b},{a}\n", "tasks find both, the leading one first"
    assert overlaps(journal.read_text().splitlines()) == []
    eventually(lambda: cluster.tasks("a") == ended, "a to have what b has")


def test_while_etcd_is_stopped_reads_answer_and_everything_continues(cluster):
    long = submit(cluster, "a", "sleep 300")
    until_running(cluster, "a", long)
    cluster.etcd.pause(0)
    began = time.monotonic()
    submitter = Submitter(cluster, cluster.home / "runs")
    submitter.start()
    while time.monotonic() - began < 2 * LEASE_SECONDS:  # longer than the leader's lease
        status, headers, body = cluster.ask("a", f"/api/v1/tasks/{long}")
        assert status == 200
        assert body["status"] == "running"
        assert headers["Dgpu-Role"] == "master"
        assert cluster.ask("b", "/api/v1/tasks")[0] == 200
        assert cluster.ask("a", "/health")[0] == 200
        time.sleep(0.2)
    assert submitter.acknowledged == []
    cluster.etcd.resume(0)
    eventually(lambda: len(submitter.acknowledged) >= 5 or submitter.failure, "submits after the stall")
    submitter.enough.set()
    submitter.join(60)
    assert submitter.failure is None
    leader = eventually(lambda: next((n for n in "ab" if cluster.is_master(n)), None), "a master")
    eventually(lambda: cluster.node(leader) == "ready", "the node to be ready")
    assert (cluster.task(leader, long)["status"], cluster.task(leader, long)["attempt"]) == ("running", 1)
    assert set(submitter.acknowledged) <= set(cluster.tasks(leader))
