"""The picture of the queue in a real Redis, which is restarted and flushed in between."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque

import pytest

from dgpu.core.events import NodeRemoved
from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.journal.memory import MemoryJournal
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.redis.mirror import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, Mirror
from dgpu.service.redis.resp import Connection, RedisFailed, Target

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _cluster import Server  # noqa: E402  the benchmarks start the same process

PATIENCE_SECONDS = 60.0


class Redis:
    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--requirepass",
                "s",
            ],
            stdout=subprocess.DEVNULL,
        )
        eventually(lambda: self.cli("PING") == ["PONG"], "Redis to start")

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def monitored(self):
        """Yields a function that returns the commands that Redis has got within the block."""
        command = ["redis-cli", "-p", str(self.port), "-a", "s", "--no-auth-warning", "MONITOR"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as monitor:
            assert monitor.stdout is not None
            assert monitor.stdout.readline() == "OK\n"
            lines: list[str] = []
            yield lambda: lines
            self.cli("ECHO", "the end")
            for line in monitor.stdout:
                lines.append(line)
                if "the end" in line:
                    break
            monitor.kill()

    def cli(self, *words: str) -> list[str]:
        command = ["redis-cli", "-p", str(self.port), "-a", "s", "--no-auth-warning", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.split()


def eventually(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


class World:
    def __init__(self, folder: pathlib.Path, redis: Redis) -> None:
        self.redis = redis
        settings = f"integrations: {{redis: {{url: 'redis://:s@127.0.0.1:{redis.port}', prefix: 'lab:'}}}}\n"
        self.server = Server(folder, settings)

    def ask(self, method: str, path: str, body: object = None) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server.http_port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")

    def submit(self, priority: str) -> str:
        return self.ask("POST", "/api/v1/tasks", {"command": "true", "name": priority, "priority": priority})[
            "task_id"
        ]

    def queue(self) -> list[str]:
        return self.redis.cli("ZRANGE", "lab:task_queue", "0", "-1")


@pytest.fixture(scope="module")
def redis():
    if shutil.which("redis-server") is None:
        pytest.skip("Redis is not installed (Debian package redis-server)")
    redis = Redis()
    redis.start()
    yield redis
    redis.stop()


@pytest.fixture
def world(tmp_path, redis):
    with contextlib.ExitStack() as ends:
        world = World(tmp_path, redis)
        ends.callback(world.server.stop)
        world.server.start()
        world.server.wait_until_ready()
        yield world


def test_the_queue_the_tasks_and_the_events_are_mirrored_and_come_back_after_a_loss(world):
    redis = world.redis
    low, high, normal = (world.submit(level) for level in ("low", "high", "normal"))
    eventually(lambda: world.queue() == [high, normal, low], "the queue, the first one first")
    assert redis.cli("ZRANK", "lab:task_queue", normal) == ["1"]
    (score,) = redis.cli("ZSCORE", "lab:task_queue", low)
    created = dt.datetime.fromisoformat(world.ask("GET", f"/api/v1/tasks/{low}")["created_at"])
    assert abs(float(score) - 90 * 10**12 - created.timestamp() * 1000) < 1_000, "level 90 for priority 10"
    assert redis.cli("HMGET", f"lab:task:{high}", "status", "priority") == ["pending", "80"]

    world.ask("DELETE", f"/api/v1/tasks/{normal}")
    eventually(lambda: world.queue() == [high, low], "the cancelled task to leave the queue")
    eventually(lambda: redis.cli("HGET", f"lab:task:{normal}", "status") == ["cancelled"], "its hash")
    events = redis.cli("XRANGE", "lab:events", "-", "+")
    assert {"task_submitted", "task_cancelled"} <= set(events)

    assert redis.cli("FLUSHALL") == ["OK"]
    eventually(lambda: world.queue() == [high, low], "the queue after FLUSHALL")

    redis.stop()
    urgent = world.submit("critical")  # the scheduler does not wait for Redis
    redis.start()
    eventually(lambda: world.queue() == [urgent, high, low], "the queue after a restart of Redis")
    assert redis.cli("HGET", f"lab:task:{normal}", "status") == ["cancelled"]

    redis.cli("HSET", "lab:task:task-999", "status", "pending")
    redis.cli("SADD", "lab:tasks", "lab:task:task-999")
    with redis.monitored() as commands:
        redis.cli("DEL", "lab:mirror")
        eventually(
            lambda: redis.cli("EXISTS", "lab:task:task-999") == ["0"], "a hash of a forgotten task to go"
        )
    deleted = [line for line in commands() if '"DEL"' in line]
    assert any("task-999" in line for line in deleted)
    assert not any(f"lab:task:{high}" in line for line in deleted), "a reader would take the task for unknown"
    assert redis.cli("SISMEMBER", "lab:tasks", "lab:task:task-999") == ["0"]
    eventually(lambda: redis.cli("KEYS", "lab:tasks*") == ["lab:tasks"], "its own sets to go")


@contextlib.asynccontextmanager
async def mirror_of(redis, prefix):
    clock = Clock()
    scheduler = Scheduler(ClusterState(), last_index=0, rules=AgentRules(), started_at=clock.now_ms())
    runtime = Runtime(scheduler, MemoryJournal(), clock)
    await runtime.start(Begin(settings=Settings()))
    target = Target("127.0.0.1", redis.port, password="s")
    try:
        yield Mirror(runtime, target, prefix), await Connection.open(target)
    finally:
        await runtime.stop()


def test_the_wait_for_redis_is_short_again_after_a_success(redis):
    """Every interruption made the next wait longer, up to half a minute, even after days of success."""

    async def run():
        async with mirror_of(redis, "again:") as (mirror, _):
            mirror.retry_s = MAX_RETRY_SECONDS  # as after many failures
            running = asyncio.create_task(mirror.run())
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not mirror.is_current:  # noqa: ASYNC110 - an attribute
                    await asyncio.sleep(0.01)
            assert mirror.retry_s == FIRST_RETRY_SECONDS
            running.cancel()

    asyncio.run(run())


def test_missed_events_are_told_and_unconfirmed_ones_are_sent_again(redis, monkeypatch):
    monkeypatch.setattr("dgpu.service.redis.mirror.MAX_EVENTS", 3)

    async def run():
        async with mirror_of(redis, "gap:") as (mirror, connection):
            mirror._events = deque(maxlen=3)
            for index in range(5):
                event = NodeRemoved(at=0, node_id=f"node-{index}")
                mirror.on_group(CommittedGroup(index=index, events=(event,)))
            connection.close()
            with pytest.raises(RedisFailed):
                await mirror._write_changes(connection)
            again = await Connection.open(Target("127.0.0.1", redis.port, password="s"))
            await mirror._write_changes(again)
            again.close()

    asyncio.run(run())
    told = " ".join(redis.cli("XRANGE", "gap:events", "-", "+"))
    assert 'events_missed facts {"count":2}' in told
    assert [f"node-{index}" in told for index in range(5)] == [False, False, True, True, True]
