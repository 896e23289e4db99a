"""The node's own disk: full, or so dead that a look at it never returns."""

from __future__ import annotations

import threading
import time

from dgpu.agent.disk_watch import DiskWatch


class SlowRoom:
    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.full = False

    def is_full(self) -> bool:
        self.go_on.wait(60)
        return self.full


def watch(room: SlowRoom) -> DiskWatch:
    made = DiskWatch(("/",), "/state")
    made._room = room  # type: ignore[assignment]
    return made


def look_done(disk: DiskWatch) -> None:
    assert disk._looking is not None
    disk._looking.join(30)
    assert not disk._looking.is_alive()


def test_a_disk_that_does_not_answer_is_told_without_waiting_for_it() -> None:
    room = SlowRoom()
    disk = watch(room)
    begun, threads = time.monotonic(), threading.active_count()
    assert disk.unfit(1_000) == ""
    assert disk.unfit(5_000) == ""
    assert disk.unfit(11_000) == "the disk of /state does not answer"
    assert threading.active_count() <= threads + 1
    assert time.monotonic() - begun < 30
    room.go_on.set()
    look_done(disk)
    assert disk.unfit(12_000) == ""


def test_a_full_disk_is_told_with_the_next_answer_until_there_is_room() -> None:
    room = SlowRoom()
    room.go_on.set()
    room.full = True
    disk = watch(room)
    disk.unfit(1_000)
    look_done(disk)
    assert disk.unfit(1_500) == "the disk of /state is full"
    room.full = False
    disk.unfit(2_500)
    look_done(disk)
    assert disk.unfit(2_600) == ""
