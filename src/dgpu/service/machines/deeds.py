"""What `dgpu ca` did to the files of the authority. The scheduler takes it over into the audit log.

A command writes its deed into the list of machines, in the transaction of the change. The running scheduler looks every
second, journals new deeds and then deletes them. Deeds of the time without a scheduler wait for the next start. A crash
between the two steps records a deed twice; none is lost.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol

import msgspec
import structlog

from dgpu.service.sqlite_files import FileUnusable

LOOK_SECONDS: Final = 1.0
MAX_DEEDS: Final = 10_000  # of a scheduler that never runs; the oldest are dropped
TABLE: Final = """
CREATE TABLE IF NOT EXISTS deeds (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at_s INTEGER NOT NULL,
  uid INTEGER NOT NULL,
  user TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL
)
"""

Action = Literal["ca.init", "ca.token", "ca.revoke"]

_log = structlog.get_logger("dgpu.machines")


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at_s: int
    uid: int
    user: str
    action: str
    subject: str


class Source(Protocol):
    def deeds(self) -> list[Deed]: ...

    def forget_deeds(self, until_id: int) -> None: ...


def write_deed(connection: sqlite3.Connection, action: Action, subject: str, *, now_s: int) -> None:
    uid = os.getuid()
    connection.execute(
        "INSERT INTO deeds (at_s, uid, user, action, subject) VALUES (?, ?, ?, ?, ?)",
        (now_s, uid, _user(uid), action, subject),
    )
    connection.execute("DELETE FROM deeds WHERE id <= (SELECT max(id) FROM deeds) - ?", (MAX_DEEDS,))


def read_deeds(connection: sqlite3.Connection) -> list[Deed]:
    rows = connection.execute("SELECT id, at_s, uid, user, action, subject FROM deeds ORDER BY id LIMIT 100")
    return [
        Deed(id=each[0], at_s=each[1], uid=each[2], user=each[3], action=each[4], subject=each[5])
        for each in rows
    ]


async def take_over(source: Source, record: Callable[[Deed], Awaitable[bool]]) -> None:
    """Runs until it is cancelled. `record` returns whether the deed is durable."""
    recorded = 0  # up to this id: a full disk may keep a deed in the list, and it is recorded once
    while True:
        try:
            for deed in await asyncio.to_thread(source.deeds):
                if deed.id > recorded:
                    if not await record(deed):
                        break
                    recorded = deed.id
                await asyncio.to_thread(source.forget_deeds, deed.id)
        except (sqlite3.Error, FileUnusable) as error:
            _log.error("machines_unreadable", error=str(error))
        await asyncio.sleep(LOOK_SECONDS)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
