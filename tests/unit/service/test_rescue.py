"""A snapshot that the scheduler writes itself is of one moment, although submits go on."""

from __future__ import annotations

from dgpu.core.model.idempotency import pack
from dgpu.core.state import ClusterState
from dgpu.journal.snapshot import SNAPSHOT_NAME, load_snapshot
from dgpu.service.recovery.rescue import write_own_snapshot


def key(number: int):
    return pack(f"team/{number}", first_id=number, count=1, at=number, fingerprint="")


class SubmitsGoOn:
    """A runtime whose state gets another key as soon as it was read."""

    committed_index = 7

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.segments = 0

    async def read(self, look):
        found = look(self._state)
        self._state.key_ring.add(key(2))
        return found

    def begin_segment(self) -> None:
        self.segments += 1


async def test_keys_of_later_submits_are_not_in_it(tmp_path) -> None:
    state = ClusterState()
    state.key_ring.add(key(1))
    runtime = SubmitsGoOn(state)
    await write_own_snapshot(runtime, tmp_path)
    found = load_snapshot(tmp_path / SNAPSHOT_NAME)
    assert (found.index, found.state.key_ring.count, runtime.segments) == (7, 1, 1)
    assert list(found.state.key_ring.packed()) == [key(1)]
    assert state.key_ring.count == 2
