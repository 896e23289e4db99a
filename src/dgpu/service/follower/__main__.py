"""The follower process. The scheduler starts it and sends orders over stdin.

An order gives the committed end of the journal, or asks a question. Answers go to stdout, one JSON value per line. The
process ends when stdin closes.
"""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec

from dgpu.journal.errors import CorruptJournal, JournalError
from dgpu.journal.lock import FolderLock
from dgpu.service.follower.follower import Follower
from dgpu.service.follower.words import (
    EXIT_CANNOT_FOLLOW,
    FOLLOWER_LOCK,
    FROM_NEWEST,
    FollowerSettings,
    Order,
)
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.history.writer import begin_again

_LOCK_PATIENCE_S = 30  # the follower of a killed scheduler ends when its stdin closes
_NICENESS = 10


def main(arguments: list[str]) -> int:
    """`python -m dgpu.service.follower DIRECTORY SETTINGS [from-newest]`, the settings as JSON."""
    os.nice(_NICENESS)
    # The stop signal of a service goes to all its processes; the scheduler still needs a last snapshot.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    directory = Path(arguments[0])
    settings = msgspec.json.decode(arguments[1], type=FollowerSettings)
    say = _Speaker(1)
    try:
        lock = FolderLock(directory, FOLLOWER_LOCK, patience_s=_LOCK_PATIENCE_S)
        try:
            _serve(Follower(directory, settings, say, from_newest=FROM_NEWEST in arguments[2:]))
        finally:
            lock.close()
    except CorruptJournal as error:
        say({"error": str(error)})
        return EXIT_CANNOT_FOLLOW
    except (JournalError, OSError, sqlite3.OperationalError) as error:
        say({"error": str(error)})
        return 1
    except (sqlite3.DatabaseError, _HistoryToRemake) as error:
        begin_again(directory / HISTORY_NAME)
        say({"error": f"the history is damaged and will be rebuilt: {error}"})
        return 1
    return 0


class _HistoryToRemake(Exception):  # noqa: N818 - the name states the failure
    """The scheduler found damage in the history. Rebuilding it needs a new start of this process."""


class _Speaker:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, message: dict[str, Any]) -> None:
        try:
            line = msgspec.json.encode(message) + b"\n"
            while line:
                line = line[os.write(self._descriptor, line) :]
        except BrokenPipeError:
            sys.exit(0)  # the scheduler has ended


def _serve(follower: Follower) -> None:
    follower.say_seen()
    unread = b""
    more = False
    while True:
        ready, _, _ = select.select([0], [], [], 0.0 if more else follower.wait_s)
        if ready:
            received = os.read(0, 65_536)
            if not received:
                return
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                order = msgspec.json.decode(line, type=Order)
                if order.remake_history:
                    raise _HistoryToRemake("a read found damage")
                if order.committed is not None:
                    follower.commit_seen(order.committed)
                if order.stop:
                    follower.finish(final_snapshot=order.final_snapshot)
                    follower.close()
                    return
                if order.snapshot:
                    follower.snapshot_now()
                if order.samples is not None:
                    follower.record(order.samples)
                if order.ask is not None:
                    follower.reply(order.ask)
                if order.fill is not None:
                    follower.fill(order.fill)
        follower.step()
        more = follower.tend()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
