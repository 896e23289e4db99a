"""Results just after a start of the scheduler: the follower has yet to read them from the journal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from dgpu.core.events import CallReturned
from dgpu.core.model.ids import LeaseId, TaskId, TenantId
from dgpu.core.model.task import TaskStatus
from dgpu.service.rest.results import EndedCall, results_of
from dgpu.service.results.file import RESULTS_NAME, ResultLimits, ResultWriter
from dgpu.service.results.results import Results

CALL = EndedCall(TaskId(7), TenantId("lab"), TaskStatus.SUCCESS, "", "", 1_000, is_call=True)


def backend(folder: Path, seen_at: int) -> Any:
    results = Results(SimpleNamespace(subscribe=lambda _: None))  # type: ignore[arg-type]
    results.read_from(folder)
    return SimpleNamespace(results=results, follower=SimpleNamespace(seen_at=seen_at))


async def test_a_result_that_is_not_read_yet_is_pending_and_not_expired(tmp_path: Path) -> None:
    """A program that waits through a restart must not be told that its result is lost."""
    rest = backend(tmp_path, seen_at=500)
    told = await results_of(rest, [CALL], 0.0)
    assert (told.results, told.pending) == ([], 1)
    writer = ResultWriter(tmp_path / RESULTS_NAME, ResultLimits())
    returned = CallReturned(
        at=1_000,
        task_id=CALL.task_id,
        lease_id=LeaseId(1),
        result=msgspec.msgpack.encode(5),
        encoding="msgpack",
    )
    writer.note(returned)
    writer.commit(now_ms=1_000)
    told = await results_of(rest, [CALL], 0.0)
    assert ([each.result for each in told.results], told.pending) == ([5], 0)
    writer.close()


async def test_a_result_that_was_deleted_is_expired(tmp_path: Path) -> None:
    told = await results_of(backend(tmp_path, seen_at=1_000), [CALL], 0.0)
    assert [(each.reason, each.result) for each in told.results] == [("result_expired", None)]
