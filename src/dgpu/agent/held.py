"""One lease in the keeper, and the operations on its process tree. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from dgpu.agent.containers.kept import Container
from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences
from dgpu.agent.spawn import CannotStart
from dgpu.agent.tree import OrphanWatch, Proc, Survey, handles, markers, send, uid_of

_SIGNAL_ROUNDS = 3  # kills by signal before a group is used: only a tree that keeps forking needs one
_MAX_FREEZE_ROUNDS = 20
_RUNNER_ROUNDS = 40  # about 15 s for a runner to remove its container before it is killed, too


class Held:
    """A task's process from its start to the end of its whole tree."""

    __slots__ = (
        "account",
        "cause",
        "container",
        "cpu_ms",
        "cwd",
        "deadline_ms",
        "directory",
        "entered",
        "env",
        "error",
        "exit_status",
        "failure",
        "fenced",
        "frozen_since_ms",
        "grace_ms",
        "grouped",
        "kill_at_ms",
        "kill_rounds",
        "lease",
        "node",
        "pid",
        "rss_mb",
        "signal",
        "signal_ms",
        "signalled",
        "start_ticks",
        "started_ms",
        "status_fd",
        "sweeps",
        "terminate_at_ms",
        "timeout_ms",
        "uid",
        "unkilled",
        "warned",
    )

    def __init__(self, order: dict[str, Any], *, pid: int, now_ms: int, ticks: int) -> None:
        self.lease: int = order["lease"]
        self.node: str = order["node"]
        self.grace_ms: int = order["grace_ms"]
        self.timeout_ms: int = order["timeout_ms"]
        asked: list[int] = order.get("signal") or [0, 0]
        self.signal, self.signal_ms = asked  # number, time before the time limit
        self.signalled = False
        self.warned = False  # its stop begins with the signal of the task, not with TERM
        self.terminate_at_ms = 0  # TERM is due; 0: sent already, or not due
        self.uid: int | None = order["account"][0] if order.get("account") else None  # None: the keeper's own
        self.deadline_ms = 0  # set when its program has started
        self.pid = pid
        self.directory = ""  # its name, if it was created for the task
        self.started_ms = now_ms
        self.start_ticks = ticks
        self.exit_status: int | None = None  # of the main process, from waitpid
        self.status_fd = -1  # open until its program has started, if that may take long
        self.failure: CannotStart | None = None  # why its program did not start
        self.cause = ""  # timeout | stopped | lease_over; empty: it ended by itself
        self.error = ""
        self.kill_at_ms = 0
        self.kill_rounds = 0
        self.frozen_since_ms = 0
        self.grouped = False
        self.fenced = False  # in its group from its first program on
        self.unkilled = 0
        self.cpu_ms = 0
        self.rss_mb = 0
        self.container: Container | None = None
        # For commands that people start inside the run.
        self.account: list[Any] | None = order.get("account")
        self.env: dict[str, str] = order.get("env", {})
        self.cwd: str = order.get("cwd", "")
        self.entered: dict[int, int] = {}  # such commands by pid, until waited for; when to kill them, or 0
        self.sweeps: Held | None = None  # the run whose container this process removes


class Trees:
    """Signals whole trees. One survey of /proc serves a whole round of the keeper's loop."""

    def __init__(
        self,
        *,
        keeper_id: str,
        mains: dict[int, Held],
        live: dict[int, Held],
        corral: Corral,
        fences: Fences,
    ) -> None:
        self._fences = fences
        self._keeper_id = keeper_id
        self._mains = mains  # by pid, until waited for
        self._live = live  # by lease, until the whole tree has gone
        self._corral = corral
        self._me = os.getpid()
        self._watch = OrphanWatch()
        self._survey: Survey | None = None
        self._strays: set[int] = set()  # adopted, lease still unknown

    def look_anew(self) -> None:
        self._survey = None

    def may_have_left(self, held: Held) -> bool:
        if held.fenced:
            # An attempt to remove the group is cheaper than a look at its processes, and is needed anyway.
            if not self._fences.counts_memory(held.lease) and self._corral.release(held.lease):
                held.grouped = False
                return False
            return bool(self._corral.pids(held.lease))
        if held.grouped or self._strays or held.container is not None or held.entered:
            return True
        return self._watch.may_have_left(held.pid, self._mains)

    def members(self, held: Held, *, marked: bool = False) -> list[Proc]:
        """All living processes of a lease. `marked`: also search other processes for its mark."""
        survey = self._survey = self._survey or Survey()
        ours = survey.with_descendants([self._me])
        self._strays = {pid for pid in self._strays if pid in ours and not ours[pid].dead}
        roots = [pid for pid, proc in ours.items() if proc.sid == held.pid or proc.sid in held.entered]
        roots.extend(held.entered)
        if held.exit_status is None:
            roots.append(held.pid)
        if held.fenced:
            # Its group decides: marks and the age of processes prove nothing.
            return self._living(survey, held, [*roots, *self._corral.pids(held.lease)])
        roots.extend(
            orphan.pid
            for orphan in survey.children(self._me)
            if orphan.pid not in self._mains and not orphan.dead and self._owns(held, orphan)
        )
        if held.container is not None:
            roots.extend(held.container.roots(survey))
        if marked:
            marks = survey.marked(self._keeper_id, held.lease)
            roots.extend(pid for pid in marks if _may_be_of(held, pid))
        return self._living(survey, held, roots)

    def _living(self, survey: Survey, held: Held, roots: list[int]) -> list[Proc]:
        return [
            proc
            for pid, proc in survey.with_descendants(roots).items()
            if not proc.dead and pid != self._me and self._mains.get(pid, held) is held
        ]

    def terminate(self, held: Held) -> None:
        members = self.members(held, marked=True)
        if held.container is not None and held.exit_status is None:
            members = [proc for proc in members if proc.pid == held.pid]  # its runner asks the engine
        for proc in members:
            send(proc, signal.SIGTERM)

    def signal(self, held: Held) -> None:
        """The task's own signal, for the processes that handle it: it would end any other, like a shell."""
        for proc in self.members(held, marked=True):
            is_runner = held.container is not None and proc.pid == held.pid
            if not is_runner and handles(proc.pid, held.signal):
                send(proc, held.signal)
                held.signalled = True

    def kill(self, held: Held) -> None:
        """One round; the caller repeats it until no process is left."""
        members = self.members(held, marked=True)
        held.kill_rounds += 1
        if held.container is not None and held.kill_rounds <= _RUNNER_ROUNDS:
            self._kill_container(held, members)
            return
        if held.exit_status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(held.pid, signal.SIGKILL)  # a child that was not waited for: its pid cannot be reused
        if (held.kill_rounds > _SIGNAL_ROUNDS or held.grouped) and self._can_group(held):
            if not held.fenced:
                self._corral.gather(held.lease, [proc.pid for proc in members])
            held.grouped = True
            self._corral.kill(held.lease)
        for proc in members:
            send(proc, signal.SIGKILL)

    def _kill_container(self, held: Held, members: list[Proc]) -> None:
        """Its runner stays for now: it removes the container and reports the exit code."""
        for proc in members:
            if proc.pid != held.pid:
                send(proc, signal.SIGKILL)
            else:
                send(proc, signal.SIGTERM)
                send(proc, signal.SIGCONT)  # it may be frozen

    def _can_group(self, held: Held) -> bool:
        """A container has a group with its limits: its processes stay there."""
        return held.container is None and self._corral.usable

    def freeze(self, trees: list[Held], now_ms: int) -> None:
        """Freezes all at once: one by one, the last tree would run past the scheduler's margin."""
        for held in trees:
            held.frozen_since_ms = held.frozen_since_ms or now_ms
        seen: set[int] = set()
        for _ in range(_MAX_FREEZE_ROUNDS):
            self._survey = None
            fresh = [
                (held, [proc for proc in self.members(held, marked=True) if proc.pid not in seen])
                for held in trees
            ]
            for held, procs in fresh:
                seen.update(proc.pid for proc in procs)
                if procs:
                    self._pause(held, procs)
            if not any(procs for _, procs in fresh):
                return

    def _pause(self, held: Held, procs: list[Proc]) -> None:
        if held.container is not None and held.container.freeze(frozen=True):
            procs = [proc for proc in procs if proc.pid == held.pid]
        elif held.fenced or (
            self._can_group(held) and self._corral.gather(held.lease, [proc.pid for proc in procs])
        ):
            held.grouped = True
            if self._corral.freeze(held.lease):
                return
        for proc in procs:
            send(proc, signal.SIGSTOP)

    def thaw(self, held: Held, now_ms: int) -> None:
        if not held.frozen_since_ms:
            return
        if held.deadline_ms:
            held.deadline_ms += now_ms - held.frozen_since_ms  # the pause does not count for the time limit
        held.frozen_since_ms = 0
        if held.grouped:
            self._corral.thaw(held.lease)
        if held.container is not None:
            held.container.freeze(frozen=False)
        for proc in self.members(held, marked=True):
            send(proc, signal.SIGCONT)

    def release(self, held: Held) -> None:
        if held.uid is not None:
            held.error = held.error or self._fences.release(held.lease)
        if held.grouped:
            self._corral.release(held.lease)

    def _owns(self, held: Held, orphan: Proc) -> bool:
        """Whether an adopted process came from this lease.

        Its session or its mark decide. A process without both belongs to the only lease that is old enough to have
        started it. With several such leases, it belongs to none and is killed with the last of them. A process of
        another Unix user never belongs to the lease of an isolated task, whatever its mark says.
        """
        if orphan.sid == held.pid or orphan.sid in held.entered:
            return True
        is_of_other = any(
            orphan.sid == other.pid or orphan.sid in other.entered for other in self._live.values()
        )
        if is_of_other or not _may_be_of(held, orphan.pid):
            return False
        lease, keeper_id = markers(orphan.pid)
        if lease and keeper_id == self._keeper_id:
            return lease == str(held.lease)
        if held.start_ticks > orphan.start_ticks + 1:
            return False
        if any(
            other is not held
            and other.start_ticks <= orphan.start_ticks + 1
            and _may_be_of(other, orphan.pid)
            for other in self._live.values()
        ):
            self._strays.add(orphan.pid)
            return False
        return True


def _may_be_of(held: Held, pid: int) -> bool:
    """An isolated task cannot change its user, so its processes all have the same one."""
    return held.uid is None or uid_of(pid) == held.uid
