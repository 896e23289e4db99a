"""kill -9 of scheduler and agent under load, again and again: nothing acknowledged is lost, nothing runs twice."""

from __future__ import annotations

import collections
import os
import random
import signal
import threading
import time

import pytest

from dgpu.client import Client

from .conftest import eventually

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("DGPU_KILLS", "20"))
PATIENCE_SECONDS = 180


class Submitter(threading.Thread):
    """Submits through the SDK all the time, and remembers only acknowledged tasks."""

    def __init__(self, url, journal):
        super().__init__(daemon=True)
        self.client = Client(url, retries=1_000)
        self.acknowledged = []
        self.failure = None
        self.enough = threading.Event()
        self._journal = journal

    def run(self):
        # Each run notes its begin and its end with one append each, so that an overlap can be seen.
        begin, end = (f'echo "{sign} $DGPU_TASK_ID $DGPU_ATTEMPT" >>{self._journal}' for sign in ("+", "-"))
        command = f"{begin}; sleep 0.2; {end}"
        try:
            while not self.enough.is_set():
                self.acknowledged.append(self.client.submit(command=command, gpu_count=1).task_id)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error


def test_twenty_kills_under_load_lose_nothing_and_run_nothing_twice(site):
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    site.up("--fake", "4xV100", "--nodes", "2")
    url = site.record["url"]
    journal = site.home / "runs"
    submitter = Submitter(url, journal)
    submitter.start()
    for number in range(KILLS):
        before = len(submitter.acknowledged)
        eventually(
            lambda before=before: submitter.failure or len(submitter.acknowledged) >= before + 5,
            "more acknowledged submits",
        )
        victims = [("scheduler",), ("agent",), ("scheduler", "agent")][number % 3]
        kill(site, victims)
        time.sleep(chance.uniform(0, 0.3))  # where in the recovery the next one strikes
    submitter.enough.set()
    submitter.join(PATIENCE_SECONDS)
    assert submitter.failure is None
    acknowledged = submitter.acknowledged
    assert len(set(acknowledged)) == len(acknowledged) >= KILLS * 5

    client = Client(url, retries=1_000)
    ended = eventually(lambda: all_ended(client), "all tasks to end", PATIENCE_SECONDS)
    assert set(ended) == set(acknowledged)  # none lost, and none that nobody asked for
    assert collections.Counter(ended.values()) == {"success": len(acknowledged)}
    assert overlaps(journal.read_text().splitlines()) == []


def kill(site, names):
    for name in names:
        pid = eventually(lambda name=name: site.record.get(name, {}).get("pid"), f"the {name} to be there")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # not yet started again after the last one: also a moment worth having


def all_ended(client):
    tasks = {task.task_id: str(task.status) for task in client.list()}
    return tasks if all(status not in {"pending", "running"} for status in tasks.values()) else None


def overlaps(lines):
    """Tasks of which a run began before the last one had ended."""
    running, twice = set(), []
    for line in lines:
        sign, task_id, _attempt = line.split()
        if sign == "+":
            if task_id in running:
                twice.append(task_id)
            running.add(task_id)
        else:
            running.discard(task_id)
    return twice
