"""Writes the golden journal of schema 1: every kind of event once or more, decided by the core of that time.

Run once, when the schema was released: `python tests/golden/make_schema1.py DIRECTORY`. What it wrote is never edited:
later versions must read it and reach the same state.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import msgspec

from dgpu.core import commands
from dgpu.core.digest import digest
from dgpu.core.events import Event
from dgpu.core.execute import execute
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, Pool, Restart, Shape, TaskDetail, TaskSpec
from dgpu.core.model.tenant import Tenant
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.journal.file import FileJournal
from dgpu.journal.snapshot import write_snapshot
from dgpu.wire.records import EVENT_TYPES, encode_group

BEGINNING = 1_750_000_000_000
HOUR_MS = 3_600_000


def gpus(node_id: str, count: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(id=f"GPU-{node_id}-{index}", node_id=node_id, index=index, model="V100", memory_mb=32_768)
        for index in range(count)
    )


def register(node_id: str, count: int, **held: object) -> commands.RegisterNode:
    return commands.RegisterNode(
        node_id=node_id,
        boot_id=f"boot-{node_id}",
        address="10.0.0.1",
        agent_version="0.1.0",
        cpus_milli=32_000,
        ram_mb=128_000,
        labels={"rack": "r1"},
        gpus=gpus(node_id, count),
        **held,
    )


def task(name: str, *, model: str = "", nodes: int = 1, **fields: object) -> TaskSpec:
    detail = TaskDetail(
        name=name,
        command=("python", "train.py", "--run", name),
        env={"SEED": "7", "NAME": "dépôt ☃"},
        workdir="/srv",
        labels={"team": "vision"},
        model_name=model,
    )
    shape = Shape(
        tenant_id="lab",
        pool=Pool.BATCH,
        priority=50,
        gpus=1,
        gpu_memory_mb=1024,
        cpus_milli=1000,
        model=model,
        nodes=nodes,
    )
    wanted = {"timeout_ms": 60_000, **fields}
    return TaskSpec(shape=shape, detail=msgspec.json.encode(detail), **wanted)


def ended(lease_id: int, outcome: Outcome, **facts: object) -> commands.ReportFinished:
    return commands.ReportFinished(lease_id=lease_id, outcome=outcome, **facts)


# Each line of a chapter is one commit group; the number is how many milliseconds pass before it.
Chapter = tuple[tuple[int, tuple[commands.Command, ...]], ...]

LIVES_AND_NODES: Chapter = (
    (0, (commands.BeginEpoch(settings=Settings(keep_finished=2, keep_finished_ms=HOUR_MS)),)),
    (10, (register("n1", 4), register("n2", 2))),
    (
        10,
        (
            commands.SubmitTasks(entries=((3, task("a")), (2, task("b"))), idempotency_key="k1", fingerprint="f1"),
            commands.RunPass(),
        ),
    ),
    (5, (commands.ReportStarted(lease_id=1), commands.ReportStarted(lease_id=2, ago_ms=2))),
    (700, (ended(1, Outcome.EXITED), commands.RunPass())),
    (20, (ended(2, Outcome.EXITED, exit_code=3), commands.RunPass())),
    (20, (ended(3, Outcome.NODE_FAULT, error="no space left on device"),)),
    (5_000, (commands.RunPass(full=True),)),
    (10, (commands.SubmitTasks(entries=((8, task("c", restart=Restart.ON_FAILURE, max_retries=1)),)),
          commands.RunPass())),
    (10, (commands.CancelTasks(task_ids=(4, 12, 13)),)),
    (10, (ended(4, Outcome.STOPPED, signal=15), commands.RunPass())),
    (10, (commands.DrainNode(node_id="n2", reason="fan"), commands.ResumeNode(node_id="n2"), commands.RunPass())),
    (10, (commands.ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=512),
          commands.ObserveGpu(gpu_id="GPU-n1-1", foreign_mb=0, fault="xid 79"))),
    (10, (commands.ChangeInventory(node_id="n1", gpus=gpus("n1", 3)),)),
    (10, (commands.SubmitTasks(entries=((1, task("hold", allocation=True, timeout_ms=1_000)),)), commands.RunPass())),
    (20_000, (commands.LoseNode(node_id="n2", reason="no heartbeat for 15 s"),)),
    (70_000, (commands.ReleaseNode(node_id="n2", reason="lease_over"), commands.RunPass())),
    (10, (commands.RemoveNode(node_id="n2"),)),
    (10, (register("n3", 2), commands.RunPass())),
    (25 * HOUR_MS, (commands.Tick(history_at=BEGINNING + 100 * HOUR_MS), commands.RunPass())),
)  # fmt: skip

TENANTS: Chapter = (
    (10, (commands.SetQuota(online_ppm=500_000),
          commands.SetTenant(tenant=Tenant(id="lab", max_gpus=4, weight_milli=2_000)))),
    (10, (commands.SetTenant(tenant=Tenant(id="guest")), commands.RemoveTenant(tenant_id="guest"))),
    (60_000, (commands.Tick(), commands.RunPass())),
    (10, (commands.BeginEpoch(settings=Settings(keep_finished=100, placement=Placement.PACK)), commands.RunPass())),
)  # fmt: skip

PEOPLE: Chapter = (
    (10, (commands.HoldTasks(task_ids=(10, 11)), commands.ChangePriority(priority=80, task_ids=(11,)))),
    (10, (commands.ReleaseTasks(task_ids=(10,)),)),
    (10, (commands.SetTenant(tenant=Tenant(id="lab", max_gpus=16, gpu_hours_milli=900_000)),)),
)  # fmt: skip

LEARNING: Chapter = (
    (10, (register("n4", 2), commands.ObserveCondition(gpu_id="GPU-n4-0", load_band=1, heat_band=2, warm=("mace",)))),
    (10, (commands.SubmitTasks(entries=((2, task("m", model="mace")),)), commands.RunPass(full=True))),
    (5_000, (ended(13, Outcome.EXITED, exit_code=3), commands.RunPass())),
    (10, (commands.ReportStarted(lease_id=15),)),
    (5_000, (ended(15, Outcome.OUT_OF_MEMORY, exit_code=1, error="CUDA out of memory"), commands.RunPass())),
    (10, (commands.ReportStarted(lease_id=16),)),
    (90_000, (ended(16, Outcome.EXITED, peak_memory_mb=9_000), commands.RunPass())),
)  # fmt: skip

GANGS: Chapter = (
    (10, (register("n5", 3), register("n6", 3), commands.SubmitTasks(entries=((2, task("g", nodes=2)),)),
          commands.RunPass())),
    (10, tuple(commands.ReportStarted(lease_id=lease_id) for lease_id in (18, 19, 20, 21, 22))),
    (5_000, (ended(18, Outcome.EXITED, peak_memory_mb=9_000), ended(19, Outcome.EXITED))),
    (10, (ended(20, Outcome.EXITED), ended(21, Outcome.SIGNALED, signal=9))),
    (60_000, (commands.Tick(), commands.RunPass(full=True))),
)  # fmt: skip

STORY: Chapter = (*LIVES_AND_NODES, *TENANTS, *PEOPLE, *LEARNING, *GANGS)


def tell() -> tuple[list[tuple[int, list[Event]]], ClusterState]:
    state, at, groups = ClusterState(), BEGINNING, []
    for passed_ms, wanted in STORY:
        at += passed_ms
        events: list[Event] = []
        for command in wanted:
            decision = execute(state, msgspec.structs.replace(command, at=at))
            if isinstance(decision, Rejection):
                raise SystemExit(f"refused: {command} → {decision}")
            events += decision
        groups.append((state.epoch, events))
    return groups, state


def write_journal(directory: Path, groups: list[tuple[int, list[Event]]]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    journal = FileJournal.open(directory, segment_bytes=8192, reserve_bytes=4096)
    journal.recover()
    for index, (epoch, events) in enumerate(groups, start=1):
        journal.append(epoch, index, encode_group(events))
    journal.close()
    for name in ("next.journal", "reserve.journal"):
        (directory / "journal" / name).unlink()
    (directory / "archive").rmdir()
    (directory / "lock").unlink()


def summary(state: ClusterState) -> dict[str, object]:
    return {
        "tasks": {
            str(one.id): [str(one.status), one.attempt, one.retries, one.reason]
            for one in state.tasks.values()
        },
        "leases": {
            str(lease.id): [lease.task_id, lease.node_id, *lease.gpu_ids] for lease in state.leases.values()
        },
        "nodes": {node.id: str(node.status) for node in state.nodes.values()},
    }


def main(directory: Path) -> None:
    groups, state = tell()
    kinds = {type(event) for _, events in groups for event in events}
    if missing := set(EVENT_TYPES) - kinds:
        raise SystemExit(f"the story lacks {sorted(kind.__name__ for kind in missing)}")
    write_journal(directory, groups)
    write_snapshot(directory, state, index=len(groups), epoch=state.epoch)
    (directory / "snapshot.json").rename(directory / "snapshot.golden.json")
    expected = {
        "digest": digest(state),
        "groups": len(groups),
        "epoch": state.epoch,
        "events": sorted(kind.__name__ for kind in kinds),
        **summary(state),
    }
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
