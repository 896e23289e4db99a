"""Clusters to look at: a scheduler and simulated nodes as processes of their own, and a little of everything in
them.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _cluster import Server, agent_host  # noqa: E402  the benchmarks start the same processes

PATIENCE_SECONDS = 60.0

# Half and half, so that both pools can be full; one failure is enough for an alert that stays. On a busy machine, an
# agent with 2,000 nodes may be silent for longer than usual.
RULES = """
quota: {online_percent: 0.5, batch_percent: 0.5}
agent: {heartbeat_timeout: 600, task_lease_seconds: 1200}
tenants:
  - {id: default}
  - {id: vision, max_gpus: 1}
alerts:
  interval_seconds: 0.2
  rules:
    failure_rate: {percent: 0.01, min_tasks: 1, window_seconds: 3600, for_seconds: 0}
    disk_full: {enabled: false}
"""
SLEEP = "exec sleep 3600"


class World:
    """One scheduler, one agent process with all nodes. `close` ends them and whatever runs there."""

    def __init__(self, nodes, cards):
        self.nodes, self.cards = nodes, cards
        # short: the path of a Unix socket has room for 107 bytes
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-web-"))
        self._open = contextlib.ExitStack()
        self._open.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.server = Server(self.folder, RULES)
        self.url = f"http://127.0.0.1:{self.server.http_port}"
        self._open.callback(self.server.stop)
        with ended_on_failure(self):
            self.server.start()
            self.server.wait_until_ready()
            self._open.enter_context(agent_host(self.server, nodes=nodes, cards=cards))

    def ask(self, method, path, body=None):
        """A connection each: one that was left open does not outlive a killed scheduler."""
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")

    def submit(self, script=SLEEP, **task):
        return self.ask("POST", "/api/v1/tasks", {"command": ["sh", "-c", script], **task})["task_id"]

    def task(self, task_id):
        return self.ask("GET", f"/api/v1/tasks/{task_id}")

    def until(self, task_id, *statuses):
        eventually(
            lambda: self.task(task_id)["status"] in statuses, f"{task_id} to be {' or '.join(statuses)}"
        )

    def close(self):
        self._open.close()


@contextlib.contextmanager
def ended_on_failure(world):
    try:
        yield
    except BaseException:
        world.close()
        raise


def eventually(condition, what):
    """Waits for a fact, never for a time; the bound is only there to end a broken run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.05)


class Scene:
    """A world with a task of each kind: it runs, it waits for its tenant's limit, it failed, it ended well."""

    def __init__(self, nodes, cards="8xV100"):
        self.world = World(nodes, cards)
        self.nodes, self.gpus = nodes, nodes * int(cards.partition("x")[0])
        with ended_on_failure(self.world):
            self._begin()

    def _begin(self):
        self.running = self.world.submit(
            f"for step in 1 2 3; do echo step $step of training; done; {SLEEP}",
            name="train-resnet",
            tenant_id="vision",
        )
        self.world.until(self.running, "running")
        self.waiting = self.world.submit(name="waits-for-its-tenant", tenant_id="vision")
        self.failed = self.world.submit("echo out of luck; exit 3", name="fails", max_retries=0)
        self.ended = self.world.submit("echo done", name="ends-well")
        self.world.until(self.failed, "failed")
        self.world.until(self.ended, "success")
