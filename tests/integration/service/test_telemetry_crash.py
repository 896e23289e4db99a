"""The telemetry file when its writer is killed, and a follower that keeps it beside everything else it does."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from dgpu.service.follower.link import FollowerLink
from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.reader import Span, Telemetry
from dgpu.service.telemetry.tiers import RAW
from dgpu.service.telemetry.writer import TelemetryWriter
from unit.journal.samples import busy_cluster, write_journal
from unit.telemetry.feeding import MIDNIGHT, batch, tidy

WRITES_FOR_EVER = """
import itertools, pathlib, sys
from dgpu.service.telemetry.writer import TelemetryWriter
from unit.telemetry.feeding import MIDNIGHT, batch
writer = TelemetryWriter(pathlib.Path(sys.argv[1]))
for point in itertools.count():
    writer.take(batch(MIDNIGHT + point * 10_000, *range(30)))
    print(point, flush=True)  # taken: from here on it must not be lost
    writer.step()
"""
GPU = "GPU-7"
PATIENCE_S = 60


def curve(path, points):
    reader = Telemetry(path)
    (series,) = reader.gpus([GPU])
    span = Span(since=MIDNIGHT, until=MIDNIGHT + points * RAW.step_ms, step_ms=RAW.step_ms)
    found = reader.read_gpus([series.number], span)[series.number].mean["utilization_percent"]
    reader.close()
    return found


@pytest.mark.parametrize("kill_after", [3, 91, 97, 230])
def test_killed_while_writing_nothing_that_was_taken_is_lost(tmp_path, kill_after):
    path = tmp_path / TELEMETRY_NAME
    child = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    taken = 0
    for line in child.stdout:
        taken = int(line) + 1
        if taken >= kill_after:
            break
    child.send_signal(signal.SIGKILL)
    taken = max([taken, *(int(line) + 1 for line in child.stdout if line.strip().isdigit())])
    child.wait()

    assert curve(path, taken) == [7.0] * taken  # also while nobody has repaired anything
    writer = TelemetryWriter(path)
    writer.take(batch(MIDNIGHT + (taken + 1_000) * RAW.step_ms, *range(30)))
    tidy(writer)
    writer.close()
    assert curve(path, taken) == [7.0] * taken
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_the_follower_keeps_batches_and_one_that_was_killed_goes_on(tmp_path):
    cluster = busy_cluster(steps=20)
    write_journal(tmp_path, cluster.groups)
    path = tmp_path / TELEMETRY_NAME
    link = FollowerLink(tmp_path)
    link.start(committed=len(cluster.groups))
    point = 0

    async def record_until(points: int) -> None:
        nonlocal point
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists() or _kept(path) < points:
                link.record(batch(MIDNIGHT + point * RAW.step_ms, *range(30)))
                point += 1
                await asyncio.sleep(0.02)

    await record_until(100)
    os.kill(link.pid, signal.SIGKILL)
    await record_until(150)
    await link.stop()
    assert link.restarts == 1
    assert _kept(path) >= 150


def _kept(path) -> int:
    try:
        return sum(value is not None for value in curve(path, 3_000))
    except ValueError:  # the card is not in it yet
        return 0


async def test_a_damaged_telemetry_file_harms_neither_history_nor_snapshots(tmp_path):
    cluster = busy_cluster(steps=20)
    write_journal(tmp_path, cluster.groups)
    path = tmp_path / TELEMETRY_NAME
    path.write_bytes(b"no database" * 1_000)
    link = FollowerLink(tmp_path)
    link.start(committed=len(cluster.groups))
    async with asyncio.timeout(PATIENCE_S):
        point = 0
        while link.seen_index < len(cluster.groups) or not link.last_error:
            link.record(batch(MIDNIGHT + point * RAW.step_ms, 1))
            point += 1
            await asyncio.sleep(0.02)
    await link.stop()
    assert "telemetry.sqlite.unusable" in link.last_error
    assert link.restarts == 0
    assert link.snapshot_index == len(cluster.groups)
