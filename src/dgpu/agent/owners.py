"""Which lease a process belongs to, by facts that a task cannot forge: parents, sessions, control groups, start times.

A task can set the environment of its processes, so the environment decides nothing here. A process that left its
parents (a daemon) is known from an earlier survey, from its session or from its group. Otherwise it belongs
to the only lease that is old enough to have started it. With several such leases, it belongs to none: no lease is
better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dgpu.agent.tree import Proc, Survey, uid_of
from dgpu.core.model.ids import LeaseId

_GROUP = re.compile(rb"/dgpu-([0-9a-f]+)/(\d+)$")


class ProcessOwners:
    """Remembers earlier surveys. Reads /proc: use a thread."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], LeaseId] = {}  # by pid and start
        self._sessions: dict[int, LeaseId] = {}  # a process can leave a session but never join another one
        self._started: dict[LeaseId, int] = {}  # ticks since boot

    def look(
        self,
        survey: Survey,
        *,
        keeper_pid: int,
        keeper_id: str,
        roots: Mapping[LeaseId, int],
        uids: Mapping[LeaseId, int] | None = None,
        inner: Mapping[LeaseId, tuple[int, int]] = MappingProxyType({}),
    ) -> dict[int, LeaseId | None]:
        """All processes of all tasks; None: a process of an unknown lease. `roots` are the first processes of
        leases, `uids` the Unix users of isolated ones, which their processes cannot change. `inner` are the first
        processes of containers with their starts: they are children of the engine.
        """
        ours = survey.with_descendants([keeper_pid])
        ours.pop(keeper_pid, None)
        self._started = {lease_id: at for lease_id, at in self._started.items() if lease_id in roots}
        found: dict[int, LeaseId] = {}
        mains: dict[int, LeaseId] = {}
        for lease_id, pid in roots.items():
            if pid in ours and ours[pid].ppid == keeper_pid:
                started = self._started.setdefault(lease_id, ours[pid].start_ticks)
                if started == ours[pid].start_ticks:  # otherwise its number was reused
                    mains[pid] = lease_id
        _spread(survey, mains.items(), found)
        # Orphans are children of the keeper: an orphan and its descendants have one owner.
        orphans = [proc for proc in survey.children(keeper_pid) if proc.pid not in mains and proc.pid in ours]
        for proc in sorted(orphans, key=lambda proc: (proc.start_ticks, proc.pid)):
            uid = uid_of(proc.pid) if uids else None
            possible = [lease_id for lease_id in roots if (uids or {}).get(lease_id, uid) == uid]
            owner = self._owner(survey, proc, keeper_id, {each: roots[each] for each in possible})
            if owner is not None:
                _spread(survey, [(proc.pid, owner)], found)
                self._sessions[proc.sid] = owner
        self._remember(ours, found)
        contained: dict[int, LeaseId] = {}
        for lease_id, (pid, start_ticks) in inner.items():
            if pid in survey.procs and survey.procs[pid].start_ticks == start_ticks:
                _spread(survey, [(pid, lease_id)], contained)
        return {pid: found.get(pid) for pid in ours} | contained

    def _owner(
        self, survey: Survey, proc: Proc, keeper_id: str, roots: Mapping[LeaseId, int]
    ) -> LeaseId | None:
        by_session = {pid: lease_id for lease_id, pid in roots.items()}  # a root leads its session
        owner = (
            self._seen.get((proc.pid, proc.start_ticks))
            or by_session.get(proc.sid)
            or self._sessions.get(proc.sid)
            or _lease_of_group(proc.pid, keeper_id)
        )
        if owner is not None:
            return owner if owner in roots else None
        # One of its children may have been seen before it created its own session.
        below = {
            self._seen.get((each.pid, each.start_ticks))
            for each in survey.with_descendants([proc.pid]).values()
        } - {None}
        if len(below) == 1:
            return below.pop()
        old_enough = [lease_id for lease_id in roots if self._started.get(lease_id, 0) <= proc.start_ticks]
        return old_enough[0] if len(old_enough) == 1 else None

    def _remember(self, ours: Mapping[int, Proc], found: Mapping[int, LeaseId]) -> None:
        self._seen = {(pid, ours[pid].start_ticks): lease_id for pid, lease_id in found.items()}
        alive = {proc.sid for proc in ours.values()}
        self._sessions = {sid: lease_id for sid, lease_id in self._sessions.items() if sid in alive}
        self._sessions |= {ours[pid].sid: lease_id for pid, lease_id in found.items()}


def _spread(survey: Survey, roots: Iterable[tuple[int, LeaseId]], found: dict[int, LeaseId]) -> None:
    for root, lease_id in roots:
        for pid in survey.with_descendants([root]):
            found.setdefault(pid, lease_id)


def _lease_of_group(pid: int, keeper_id: str) -> LeaseId | None:
    """See corral: the keeper creates the groups of leases."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:  # noqa: PTH123 - many of these are opened in a row
            match = next((found for line in file if (found := _GROUP.search(line.rstrip()))), None)
    except OSError:
        return None
    if match is None or match[1].decode() != keeper_id:
        return None
    return LeaseId(int(match[2]))
