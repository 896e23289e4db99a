"""Numbers of connections, as /ready shows them."""

from __future__ import annotations

import msgspec


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to the scheduler. `refused` and `shed` count since its start."""

    http: int
    http_max: int
    http_refused: int
    http_shed: int  # idle connections closed to make room
    http_unread: int  # closed because the client did not read the response
    agents: int
    agents_max: int
    agents_closed: int  # of other users, closed to make room
    files: int  # open files of the process
    files_max: int
