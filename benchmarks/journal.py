"""The journal on a real disk: what durability costs, and how fast it is read again."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dgpu.core.commands import BeginEpoch, SubmitTasks
from dgpu.core.events import Event
from dgpu.core.execute import execute
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Shape, TaskDetail, TaskSpec
from dgpu.core.state import ClusterState
from dgpu.journal.file import FileJournal
from dgpu.journal.format import encode_record, scan
from dgpu.journal.snapshot import load_snapshot, write_snapshot
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import FollowerSettings
from dgpu.wire.records import SCHEMA, decode_group, encode_group

APPENDS = 3_000
SHAPE = Shape(tenant_id="lab", pool=Pool.BATCH, priority=50, gpus=1)


def run() -> Iterator[dict[str, Any]]:
    """Beside the working directory, not in the temp dir, which may be memory."""
    directory = Path(tempfile.mkdtemp(prefix=".bench-journal-", dir=Path.cwd()))
    try:
        yield from appends(directory / "appends")
        yield from prepared_against_growing(directory)
        yield from reading()
        for tasks in (20_000, 100_000):
            yield from snapshots(directory / f"snapshot-{tasks}", tasks)
        yield from following(directory / "following", 20_000)
    finally:
        shutil.rmtree(directory)


def appends(directory: Path) -> Iterator[dict[str, Any]]:
    journal = FileJournal.open(directory)
    journal.recover()
    payload = os.urandom(600)
    took: list[float] = []
    for index in range(1, APPENDS + 1):
        started = time.perf_counter()
        journal.append(1, index, payload)
        took.append((time.perf_counter() - started) * 1e3)
    journal.close()
    took.sort()
    yield figure("append + fdatasync p50", took[len(took) // 2], "ms", record_bytes=640)
    yield figure("append + fdatasync p99", took[len(took) * 99 // 100], "ms")
    yield figure("appends, one after the other", 1e3 * len(took) / sum(took), "records/s")


def prepared_against_growing(directory: Path) -> Iterator[dict[str, Any]]:
    """The same writes to a segment made ahead and to a file that grows, alternating in one run."""
    prepared, growing = directory / "prepared", directory / "growing"
    prepared.write_bytes(bytes(8 << 20))
    growing.touch()
    files = [os.open(path, os.O_RDWR) for path in (prepared, growing)]
    for file in files:
        os.fsync(file)
    record, took = os.urandom(640), [0.0, 0.0]
    for turn in range(1_000):
        for which, file in enumerate(files):
            started = time.perf_counter()
            os.pwrite(file, record, turn * len(record))
            os.fdatasync(file)
            took[which] += time.perf_counter() - started
    for file in files:
        os.close(file)
    yield figure("growing file against prepared segment", took[1] / took[0], "times as slow")


def reading() -> Iterator[dict[str, Any]]:
    groups, _ = submitted(50_000, batch=1)
    segment = b"".join(
        encode_record(schema=SCHEMA, epoch=1, index=index, payload=encode_group(group))
        for index, group in enumerate(groups, start=1)
    )
    with quiet():
        started = time.perf_counter()
        records = scan(segment, file="", first_index=1).records
        scanned = time.perf_counter()
        for record in records:
            decode_group(record.payload, record.schema)
        decoded = time.perf_counter()
    mib_s = len(segment) / (scanned - started) / 2**20
    yield figure("scan of single submits", len(records) / (scanned - started), "records/s", mib_s=mib_s)
    yield figure("scan and decode of single submits", len(records) / (decoded - started), "records/s")


def snapshots(directory: Path, tasks: int) -> Iterator[dict[str, Any]]:
    directory.mkdir()
    _, state = submitted(tasks, batch=1_000)
    with quiet():
        started = time.perf_counter()
        write_snapshot(directory, state, index=1, epoch=1)
        written = time.perf_counter()
        size = (directory / "snapshot.json").stat().st_size
        loading = time.perf_counter()
        load_snapshot(directory / "snapshot.json")
        loaded = time.perf_counter()
    yield figure(f"snapshot of {tasks:,} waiting tasks, write", written - started, "s", mib=size / 2**20)
    yield figure(f"snapshot of {tasks:,} waiting tasks, load and check", loaded - loading, "s")


def following(directory: Path, tasks: int) -> Iterator[dict[str, Any]]:
    """How fast the follower gets submits into the history."""
    groups, _ = submitted(tasks, batch=1_000)
    journal = FileJournal.open(directory)
    journal.recover()
    for index, group in enumerate(groups, start=1):
        journal.append(1, index, encode_group(group))
    journal.close()
    follower = Follower(directory, FollowerSettings(), lambda _: None)
    started = time.perf_counter()
    follower.commit_seen(len(groups))
    while follower.behind:
        follower.step()
    seconds = time.perf_counter() - started
    follower.close()
    yield figure("follower, submits into the history", tasks / seconds, "tasks/s")


def submitted(tasks: int, *, batch: int) -> tuple[list[tuple[Event, ...]], ClusterState]:
    """Tasks with distinct names and commands, as a user's sweep has them."""
    state, groups = ClusterState(), []
    with quiet():
        groups.append(execute(state, BeginEpoch(at=1, settings=Settings())))
        for first in range(0, tasks, batch):
            entries = tuple((1, spec(number)) for number in range(first, first + batch))
            groups.append(execute(state, SubmitTasks(at=2, entries=entries)))
    return groups, state  # type: ignore[return-value]


def spec(number: int) -> TaskSpec:
    detail = TaskDetail(
        name=f"train-{number}",
        command=f"python train.py --lr 0.1 --seed {number} --out /srv/runs/{number}",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "SEED": str(number)},
        workdir="/srv/train",
    )
    return TaskSpec(shape=SHAPE, detail=msgspec.json.encode(detail), timeout_ms=3_600_000)


def figure(name: str, value: float, unit: str, **more: float) -> dict[str, Any]:
    return {"figure": name, "value": round(value, 3), "unit": unit} | {
        key: round(one, 1) for key, one in more.items()
    }


class quiet:  # noqa: N801 - reads as a statement
    """Without the collector, as the service recovers."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line))
