"""Writes the golden journal of schema 2: the story of schema 1 by a core that knows clusters, nonces and lost tails.

`python tests/golden/make_schema2.py tests/golden/schema2`, as long as schema 2 is not released. After that what it
wrote is never edited: later versions must read it and reach the same state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
from make_schema1 import BEGINNING, STORY, Chapter, register, summary, task, write_journal

from dgpu.core import commands
from dgpu.core.digest import digest
from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret
from dgpu.core.model.settings import Settings
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.journal.snapshot import write_snapshot
from dgpu.wire.records import EVENT_TYPES

CLUSTER = "3f6c1a52d9e04b7788aa01c2"

LARGE = msgspec.structs.replace(
    task("large"), shape=msgspec.structs.replace(task("large").shape, gpus=2, priority=90)
)

SPAN = WallSpan(boot_id="5d0f", boot_offset_ms=BEGINNING, wall_offset_ms=250)
TOKEN = Token(id="k1", name="ci", user="ann", role="user", keyed_hash=bytes(range(32)), tenants=("lab",))
OLD_TOKEN = Token(id="k0", name="scrape", user="prom", role="viewer", keyed_hash=bytes(32), all_tenants=True)
SCOPED = msgspec.structs.replace(TOKEN, id="k2", name="submits", scopes=("task.submit", "task.read"))
SECRET = Secret(tenant_id="lab", name="HF_TOKEN", sealed=bytes(range(40)), set_by="ann")
DONE = AuditEntry(
    user="root",
    role="admin",
    source="uid",
    tenants=None,
    action="token.change",
    origin="uid 0",
    request_id="r1",
    call="DELETE /api/v1/tokens/{token_id}",
    subject="k0",
)
REFUSED = AuditEntry(
    action="task.output",
    call="GET /api/v1/tasks/{task_id}/output",
    subject="task-7",
    origin="10.0.0.9",
    request_id="r2",
    status=403,
    code="wrong_token",
    count=9,
    since=BEGINNING,
)
LOST_TAIL: Chapter = (
    (1_000, (commands.BeginEpoch(settings=Settings(reservations=3), above_epoch=7, above_task=900, lost_tail=True,
                                 lost_wait_ms=65_000, wall=SPAN), commands.ReadWallClock(span=SPAN))),
    (10, (commands.SetTenant(tenant=Tenant(id="lab")), register("n7", 2), commands.RunPass(full=True))),
    (10, (commands.SubmitTasks(entries=((4, task("r")), (1, LARGE), (2, task("s")))), commands.RunPass(full=True))),
    (10, (commands.CreateToken(token=OLD_TOKEN), commands.CreateToken(token=TOKEN),
          commands.CreateToken(token=SCOPED))),
    (10, (commands.SetSecret(secret=SECRET), commands.SetSecret(secret=msgspec.structs.replace(SECRET, name="OLD")))),
    (10, (commands.Reseal(secrets=(ResealedSecret("lab/HF_TOKEN", 1, bytes(40)),),
                          details=(ResealedDetail((901,), b'{"command":"r","env":{"A":""},"sealed_env":"AQID"}'),)),
          commands.DeleteSecret(tenant_id="lab", name="OLD"))),
    (10, (commands.RevokeToken(token_id="k0", audit=DONE), commands.RecordAudit(entries=(REFUSED,)))),
)  # fmt: skip


def tell() -> tuple[list[tuple[int, list[Event]]], ClusterState]:
    """Leases of the story are numbered in the order of their grants."""
    state, at, groups = ClusterState(), BEGINNING, []
    granted: list[LeaseId] = []
    for passed_ms, wanted in (*STORY, *LOST_TAIL):
        at += passed_ms
        events: list[Event] = []
        for command in wanted:
            changes: dict[str, object] = {"at": at}
            if isinstance(command, commands.BeginEpoch):
                changes |= {"cluster_id": CLUSTER, "nonce": f"{len(groups):016x}"}
            elif isinstance(command, commands.ReportStarted | commands.ReportFinished):
                changes |= {"lease_id": granted[command.lease_id - 1]}
            decision = execute(state, msgspec.structs.replace(command, **changes))
            if isinstance(decision, Rejection):
                raise SystemExit(f"refused: {command} → {decision}")
            for event in decision:
                placed = event.ranks if isinstance(event, GangPlaced) else (event,)
                granted += [one.lease_id for one in placed if isinstance(one, TaskPlaced)]
            events += decision
        groups.append((state.epoch, events))
    return groups, state


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
