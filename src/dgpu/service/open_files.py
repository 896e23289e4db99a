"""How the scheduler shares out its open files: connections get the files that journal, history and follower do not
need.

Connections come from outside. The scheduler's own files are reserved first, so that no number of connections can stop
the journal from opening its next segment.
"""

from __future__ import annotations

import msgspec

MAX_HTTP_CONNECTIONS = 4_096
MAX_AGENT_CONNECTIONS = 4_096
MAX_RESERVE = 256
MIN_FILES = 256  # below this, the scheduler warns at its start
_MIN_SHARE = 16


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Connections for HTTP. The owner is the scheduler's own user and root, connecting from this machine."""

    total: int
    others: int  # all connections except the owner's, together
    per_uid: int  # of another user of this machine
    per_address: int  # of another machine


class AgentConnections(msgspec.Struct):
    """Counted by the gRPC server, shown by /ready and /metrics."""

    max: int = MAX_AGENT_CONNECTIONS
    open: int = 0  # at the last check
    closed: int = 0  # connections of other users


class FileBudget(msgspec.Struct, frozen=True, kw_only=True):
    files: int
    reserve: int  # for journal, history, follower, output, alerts
    agents: int  # connections for gRPC
    http: HttpLimits


def budget_of(files: int) -> FileBudget:
    reserve = min(MAX_RESERVE, files // 4)
    agents = max(_MIN_SHARE, min(MAX_AGENT_CONNECTIONS, files // 4))
    total = max(_MIN_SHARE, min(MAX_HTTP_CONNECTIONS, files - reserve - agents - _MIN_SHARE))
    return FileBudget(files=files, reserve=reserve, agents=agents, http=http_limits(total))


def http_limits(total: int) -> HttpLimits:
    """A quarter stays free for the owner, however many connections all others open together."""
    return HttpLimits(
        total=total,
        others=total - max(1, total // 4),
        per_uid=max(1, total // 8),
        per_address=max(1, total // 2),
    )
