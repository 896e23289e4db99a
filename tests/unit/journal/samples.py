"""Groups as a scheduler would write them: random commands, decided by the production core."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from dgpu.core import commands
from dgpu.core.events import Event
from dgpu.core.execute import execute
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, Shape, TaskDetail, TaskSpec, TaskStatus
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.journal.file import FileJournal
from dgpu.wire.records import encode_group

SECRET = "hunter2-never-in-the-history"
SETTINGS = Settings(keep_finished=5, keep_finished_ms=10_000, idempotency_ms=20_000)


def spec(name: str = "train", *, gpus: int = 1, shape: Shape | None = None, **fields) -> TaskSpec:
    detail = TaskDetail(name=name, command=("python", name), env={"TOKEN": SECRET}, labels={"team": "a"})
    shape = shape or Shape(tenant_id="lab", pool=Pool.BATCH, priority=50, gpus=gpus)
    return TaskSpec(shape=shape, detail=msgspec.json.encode(detail), timeout_ms=1_000, **fields)


def gpus(node_id: str, count: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(id=f"GPU-{node_id}-{i}", node_id=node_id, index=i, model="V100", memory_mb=32_000)
        for i in range(count)
    )


def register(node_id: str, count: int = 4) -> commands.RegisterNode:
    return commands.RegisterNode(
        node_id=node_id, boot_id="b1", cpus_milli=64_000, ram_mb=256_000, gpus=gpus(node_id, count)
    )


class Cluster:
    """Runs commands and keeps each one's events as a group."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.state = ClusterState()
        self.groups: list[tuple[Event, ...]] = []
        self.at = 1_700_000_000_000

    def do(self, *wanted: commands.Command) -> None:
        events: list[Event] = []
        for command in wanted:
            self.at += self.random.choice((0, 1, 500))
            decision = execute(self.state, msgspec.structs.replace(command, at=self.at))
            if not isinstance(decision, Rejection):
                events += decision
        if events:
            self.groups.append(tuple(events))

    def begin(self) -> Cluster:
        self.do(commands.BeginEpoch(settings=SETTINGS), register("n1"), register("n2", 2))
        return self

    def live_on(self, steps: int) -> Cluster:
        for step in range(steps):
            getattr(
                self, self.random.choice(("submit", "submit", "end", "end", "end", "cancel", "tick", "drain"))
            )(step)
        return self

    def submit(self, step: int) -> None:
        entries = tuple(
            (self.random.randint(1, 3), spec(f"t{step}.{i}")) for i in range(self.random.randint(1, 3))
        )
        key = f"key-{step}" if self.random.random() < 0.3 else ""
        self.do(
            commands.SubmitTasks(entries=entries, idempotency_key=key, fingerprint=key), commands.RunPass()
        )

    def end(self, step: int) -> None:
        for lease in list(self.state.leases.values())[:2]:
            outcome = self.random.choice((Outcome.EXITED, Outcome.EXITED, Outcome.NODE_FAULT))
            code = self.random.choice((0, 0, 1))
            started = commands.ReportStarted(lease_id=lease.id)
            ended = commands.ReportFinished(
                lease_id=lease.id, outcome=outcome, exit_code=code, error="one line"
            )
            self.do(started)
            self.do(ended, commands.RunPass())

    def cancel(self, step: int) -> None:
        waiting = [task.id for task in self.state.tasks.values() if task.status is TaskStatus.PENDING]
        self.do(commands.CancelTasks(task_ids=tuple(waiting[:2])))

    def tick(self, step: int) -> None:
        self.do(commands.Tick(history_at=self.at), commands.RunPass(full=True))

    def drain(self, step: int) -> None:
        self.do(commands.DrainNode(node_id="n2", reason="fan"))
        self.do(commands.ResumeNode(node_id="n2"))


def busy_cluster(seed: int = 1, steps: int = 60) -> Cluster:
    return Cluster(seed).begin().live_on(steps)


def append_groups(
    journal: FileJournal, groups: list[tuple[Event, ...]], *, first: int = 1, epoch: int = 1
) -> None:
    for index, group in enumerate(groups, start=first):
        journal.append(epoch, index, encode_group(group))


def write_journal(directory: Path, groups: list[tuple[Event, ...]], *, segment_bytes: int = 1 << 16) -> None:
    journal = FileJournal.open(directory, segment_bytes=segment_bytes, reserve_bytes=1 << 13)
    journal.recover()
    append_groups(journal, groups)
    journal.close()
