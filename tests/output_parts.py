"""Parts of output for tests of the store, and what the store has of them."""

from __future__ import annotations

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.task_output.pack import OutputPart
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.stored import StoredOutput

NOW = 1_700_000_000_000


def output(task: int, content: bytes = b"hello\n", attempt: int = 1, offset: int = 0) -> OutputPart:
    """An attempt in one part."""
    return part(task, content, attempt, offset, end=offset + len(content))


def part(
    task: int,
    content: bytes,
    attempt: int = 1,
    offset: int = 0,
    *,
    end: int = -1,
    kept_until_ms: int = 0,
    epoch: int = 3,
) -> OutputPart:
    return OutputPart(
        task_id=TaskId(task),
        attempt=attempt,
        lease_id=LeaseId((epoch << 32) + task),
        node_id=NodeId("n1"),
        offset=offset,
        content=content,
        end=end,
        kept_until_ms=kept_until_ms,
    )


def read(store: LogStore, stored: StoredOutput) -> dict[int, bytes]:
    """All that is stored of an attempt, by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while (piece := store.piece(stored, offset)) is not None:
        found[piece[0]] = piece[1]
        offset = piece[0] + len(piece[1])
    return found


def is_found(store: LogStore, expected: OutputPart) -> bool:
    stored = store.find(expected.task_id, expected.attempt)
    return stored is not None and read(store, stored) == {expected.offset: expected.content}


def is_stored(store: LogStore, task: int) -> bool:
    return store.find(TaskId(task), 1) is not None
