"""The follower as a process, with its link: killed, starved and stopped."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dgpu.core.digest import digest
from dgpu.journal.file import FileJournal
from dgpu.journal.snapshot import load_newest
from dgpu.service.follower.link import FollowerLink
from dgpu.service.follower.words import FollowerSettings
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import HISTORY_NAME, History
from dgpu.wire.records import encode_group
from unit.journal.samples import busy_cluster, write_journal

PATIENCE_S = 60


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


async def test_it_follows_and_leaves_a_snapshot_behind_at_a_clean_stop(tmp_path) -> None:
    cluster = busy_cluster(steps=100)
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 13)
    link = FollowerLink(tmp_path)
    link.start(committed=10)
    await until(lambda: link.seen_index == 10)
    for index in range(11, len(cluster.groups) + 1):
        link.notify(index)
    await until(lambda: link.seen_index == len(cluster.groups))
    assert link.seen_at == cluster.state.last_at - 1
    assert (
        len(History(tmp_path / HISTORY_NAME).list_tasks(TaskFilters(), live=True, limit=1000))
        == cluster.state.next_task_id - 1
    )
    assert not (tmp_path / "snapshot.json").exists()
    await link.stop()
    assert link.snapshot_index == len(cluster.groups)
    assert digest(load_newest(tmp_path)[0].state) == digest(cluster.state)
    assert link.restarts == 0


async def test_a_stop_right_after_the_last_commit_still_has_everything(tmp_path) -> None:
    cluster = busy_cluster(steps=100)
    write_journal(tmp_path, cluster.groups)
    link = FollowerLink(tmp_path)
    link.start(committed=0)
    link.notify(len(cluster.groups))
    await link.stop()
    assert load_newest(tmp_path)[0].index == len(cluster.groups)


@pytest.mark.slow
async def test_killed_again_and_again_it_catches_up(tmp_path) -> None:
    cluster = busy_cluster(9, steps=200)
    journal = FileJournal.open(tmp_path, segment_bytes=1 << 13, reserve_bytes=1 << 12)
    journal.recover()
    link = FollowerLink(tmp_path, FollowerSettings(snapshot_interval_ms=50))
    link.start(committed=0)
    kills = 0
    for index, group in enumerate(cluster.groups, start=1):
        journal.append(1, index, encode_group(group))
        link.notify(index)
        if index % (len(cluster.groups) // 5) == 0:
            await until(lambda: link.pid is not None)
            os.kill(link.pid, signal.SIGKILL)
            kills += 1
            await until(lambda wanted=kills: link.restarts == wanted)
            link._delay_s = 0.1  # keep the test short
        await asyncio.sleep(0.002)
    await until(lambda: link.seen_index == len(cluster.groups))
    await link.stop()
    journal.close()
    assert kills >= 5
    assert digest(load_newest(tmp_path)[0].state) == digest(cluster.state)
    history = History(tmp_path / HISTORY_NAME)
    assert len(history.list_tasks(TaskFilters(), live=True, limit=1000)) == cluster.state.next_task_id - 1
    for task in cluster.state.tasks.values():
        assert history.task(task.id).status is task.status


async def test_one_that_dies_while_stopping_is_not_waited_for_forever(tmp_path) -> None:
    cluster = busy_cluster(steps=20)
    write_journal(tmp_path, cluster.groups)
    link = FollowerLink(tmp_path)
    link.start(committed=len(cluster.groups))
    await until(lambda: link.seen_index == len(cluster.groups))
    os.kill(link.pid, signal.SIGSTOP)
    stopping = asyncio.create_task(link.stop())
    await asyncio.sleep(0.05)
    os.kill(link.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await stopping
    assert link.pid is None


async def test_a_journal_it_cannot_read_is_said_and_it_is_tried_again_later(tmp_path) -> None:
    cluster = busy_cluster(steps=20)
    write_journal(tmp_path, cluster.groups)
    segment = next((tmp_path / "journal").glob("segment-*"))
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    link = FollowerLink(tmp_path)
    link.start(committed=len(cluster.groups))
    await until(lambda: link.restarts >= 1)
    assert "group 1" in link.last_error
    segment.write_bytes(content)
    await until(lambda: link.seen_index == len(cluster.groups))
    await link.stop(final_snapshot=False)


def start_by_hand(directory: Path) -> subprocess.Popen:
    settings = msgspec.json.encode(FollowerSettings()).decode()
    return subprocess.Popen(
        [sys.executable, "-m", "dgpu.service.follower", str(directory), settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_it_ends_when_its_scheduler_is_gone_and_ignores_signals_meant_for_it(tmp_path) -> None:
    write_journal(tmp_path, busy_cluster(steps=5).groups)
    process = start_by_hand(tmp_path)
    assert b'"seen":0' in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.stdin.write(b'{"committed":3}\n')
    process.stdin.flush()
    assert b'"seen":3' in process.stdout.readline()
    process.stdin.close()
    assert process.wait(timeout=PATIENCE_S) == 0
    process.stdout.close()


def waits_for_lock(pid: int, directory: Path) -> bool:
    opened = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.append(entry.readlink())
    return directory / "follower.lock" in opened


def test_a_new_one_waits_for_the_one_before(tmp_path) -> None:
    """A killed scheduler's follower may still be writing when the next scheduler starts one."""
    write_journal(tmp_path, busy_cluster(steps=5).groups)
    first = start_by_hand(tmp_path)
    assert b'"seen":0' in first.stdout.readline()
    second = start_by_hand(tmp_path)
    while second.poll() is None and not waits_for_lock(second.pid, tmp_path):
        time.sleep(0.01)
    first.stdin.close()
    assert b'"seen":0' in second.stdout.readline()
    assert first.wait(timeout=PATIENCE_S) == 0
    second.stdin.close()
    assert second.wait(timeout=PATIENCE_S) == 0
    first.stdout.close()
    second.stdout.close()
