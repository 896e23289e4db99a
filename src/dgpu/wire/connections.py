"""How many connections a scheduler has, as /ready shows it."""

from __future__ import annotations

import msgspec


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to the scheduler. `refused` and `shed` count since its start."""

    http: int
    http_max: int
    http_refused: int
    http_shed: int  # idle ones that made room for others
    http_unread: int  # closed because the client did not read its answer
    agents: int
    agents_max: int
    agents_closed: int  # of other users, closed to make room
    files: int  # open files of the process
    files_max: int
