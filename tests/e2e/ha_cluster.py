"""Two schedulers, one agent and etcd as real processes, on free ports."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import uuid

from dgpu.entry.chaos.ports import free_port
from dgpu.entry.keepers import end_keepers
from e2e.conftest import PATIENCE_SECONDS, eventually
from etcd_cluster import EtcdCluster

SCHEDULER = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}"}}
quota: {{mode: borrow, unknown_tenants: create}}
agent: {{task_lease_seconds: 60, heartbeat_timeout: 15}}
storage: {{snapshot_dir: {home}/{name}, journal: etcd}}
ha: {{mode: external, name: {name}, endpoints: {endpoints}, prefix: "/dgpu/", read_stale_max: {stale_s}}}
"""
AGENT = """\
agent: {{id: n1, heartbeat_interval: 1}}
scheduler: {{master_address: "{addresses}", retry_interval: 0.2, max_retry_interval: 1}}
gpu: {{detection_method: simulated, simulated: "4xV100"}}
executor: {{work_dir: {home}/n1, stop_grace_seconds: 1}}
"""
KEY = f"{'5a' * 32}\n"
DOWN = (OSError, urllib.error.URLError, TimeoutError, json.JSONDecodeError)


class HaCluster:
    def __init__(self, *, members=1, more="", read_stale_max=30):
        """`more`: lines for both scheduler.yaml."""
        self.more = more
        self.read_stale_max = read_stale_max
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-ha-"))  # short, for Unix sockets
        self.etcd = EtcdCluster(self.home / "etcd", members=members)
        self.http = {name: free_port() for name in "ab"}
        self.services = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
        self.env = {**kept, "HOME": str(self.home), "NO_COLOR": "1"}

    def __enter__(self):
        self.etcd.__enter__()
        addresses = []
        for name, http in self.http.items():
            grpc = free_port()
            addresses.append(f"127.0.0.1:{grpc}")
            text = SCHEDULER.format(
                home=self.home,
                name=name,
                http=http,
                grpc=grpc,
                endpoints=json.dumps(self.etcd.endpoints),
                stale_s=self.read_stale_max,
            )
            (self.home / f"{name}.yaml").write_text(text + self.more)
            self.make_directory(name)
        agent = AGENT.format(home=self.home, addresses=",".join(addresses))
        (self.home / "agent.yaml").write_text(agent)
        return self

    def __exit__(self, *_):
        for name in tuple(self.services):
            os.killpg(self.services[name].pid, signal.SIGKILL)  # its follower would still write
            self.services.pop(name).wait(PATIENCE_SECONDS)
        end_keepers(self.home / "n1")
        self.etcd.close()
        eventually(self._is_removed, f"{self.home} to be removed")

    def _is_removed(self):
        """A process that was killed may still have created a file meanwhile."""
        shutil.rmtree(self.home, ignore_errors=True)
        return not self.home.exists()

    def make_directory(self, name):
        """A new one, with the key files that an operator copies."""
        (self.home / name).mkdir(mode=0o700)
        for key_file in ("token.key", "secrets.key"):
            (self.home / name / key_file).write_text(KEY)

    def start(self, name):
        verb = "agent" if name == "agent" else "scheduler"
        with (self.home / f"{name}.log").open("ab") as log:
            self.services[name] = subprocess.Popen(
                [sys.executable, "-m", "dgpu", verb, "--config", str(self.home / f"{name}.yaml")],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, name, number):
        self.services[name].send_signal(number)

    def kill(self, name):
        process = self.services.pop(name)
        process.kill()
        process.wait(PATIENCE_SECONDS)

    def log(self, name):
        return (self.home / f"{name}.log").read_text()

    def ask(self, name, path, body=None, key="", timeout=20, method=None):
        """(status, headers, body); None: the scheduler does not answer."""
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        content = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.http[name]}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, content, headers, method=method), timeout=timeout
            ) as answer:
                return answer.status, answer.headers, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, json.load(error)
        except DOWN:
            return None

    def is_master(self, name):
        told = self.ask(name, "/ready?role=master")
        return told is not None and told[0] == 200

    def is_ready(self, name):
        told = self.ask(name, "/ready")
        return told is not None and told[0] == 200

    def start_all(self):
        """Scheduler a leads, b follows, and the node is ready."""
        self.start("a")
        eventually(lambda: self.is_master("a"), "a to lead")
        self.start("b")
        eventually(lambda: self.is_ready("b"), "b to follow")
        self.start("agent")
        eventually(lambda: self.node("a") == "ready", "the node to be ready")

    def node(self, name):
        told = self.ask(name, "/api/v1/nodes")
        return told[2]["nodes"][0]["status"] if told and told[0] == 200 and told[2]["nodes"] else None

    def task(self, name, task_id):
        told = self.ask(name, f"/api/v1/tasks/{task_id}")
        return told[2] if told and told[0] == 200 else None

    def tasks(self, name):
        found, cursor = {}, ""
        while True:
            page = eventually(lambda at=cursor: self._page(name, at), f"{name} to list its tasks")
            found |= {task["task_id"]: task["status"] for task in page["tasks"]}
            if not page.get("next_cursor"):
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def _page(self, name, cursor):
        """None: the engine has not answered for long, as on a busy machine, so the list would be too old."""
        told = self.ask(name, f"/api/v1/tasks?limit=500{cursor}")
        assert told is not None
        assert told[0] == 200 or told[2]["code"] == "too_stale", told[2]
        return told[2] if told[0] == 200 else None


class Submitter(threading.Thread):
    """Submits all the time, each task with its own key, and repeats until some scheduler acknowledges it."""

    def __init__(self, cluster, journal):
        super().__init__(daemon=True)
        self.acknowledged = []
        self.by = collections.Counter()
        self.codes = collections.Counter()  # refusals
        self.failure = None
        self.enough = threading.Event()
        self._cluster = cluster
        self._turn = 0  # of the schedulers
        # Each run notes its begin and its end with one append each, so that an overlap can be seen.
        begin, end = (f'echo "{sign} $DGPU_TASK_ID $DGPU_ATTEMPT" >>{journal}' for sign in ("+", "-"))
        self._body = {"command": f"{begin}; sleep 0.1; {end}", "gpu_count": 1}

    def run(self):
        while not self.enough.is_set() and self.failure is None:
            self._submit(str(uuid.uuid4()))

    def _submit(self, key):
        while True:
            name = "ab"[self._turn % 2]
            told = self._cluster.ask(name, "/api/v1/tasks", self._body, key, timeout=5)
            if told is None:
                self._turn += 1
                continue
            status, _, body = told
            if status == 201:
                self.acknowledged.append(body["task_id"])
                self.by[name] += 1
                return
            self._turn += 1
            self.codes[body["code"]] += 1
            if status != 503:
                self.failure = body
                return
