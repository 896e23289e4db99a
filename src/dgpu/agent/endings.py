"""The runs of a keeper, from their first process to the record of their end. Standard library only.

A run ends by order, at its time limit, at the end of the task lease, or by itself. Its end is reported when its whole
tree has gone and the scribe has recorded it.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
from typing import Any

from dgpu.agent.containers.kept import ContainerRunners
from dgpu.agent.entries import Entries, hang_up
from dgpu.agent.held import Held, Trees
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.launches import Launches
from dgpu.agent.news import News
from dgpu.agent.scribe_link import ScribeLink
from dgpu.agent.spawn import CannotStart
from dgpu.agent.store import Record, record_of
from dgpu.agent.task_leases import TaskLeases

_CHECK_MS = 25
_SLOW_CHECK_MS = 500
_UNKILLABLE_MS = 60_000
_FROZEN_CHECK_MS = 100
_SWEEP_AGAIN_MS = 1_000
_SIGNAL_AGAIN_MS = 1_000
_LAST_MS = 10_000  # from TERM to KILL, at the end of a stop that began with the signal of the task


_RUNNER_DIED = CannotStart("node_fault", 125, "the process that ran its container died")


class Endings:
    def __init__(
        self,
        *,
        known: dict[int, Record],
        mains: dict[int, Held],
        live: dict[int, Held],
        trees: Trees,
        leases: TaskLeases,
        launches: Launches,
        containers: ContainerRunners,
        entries: Entries,
        scribe: ScribeLink,
        news: News,
    ) -> None:
        self.known = known  # every lease that is not forgotten, running or ended
        self.mains = mains  # by pid, until waited for
        self.live = live  # until the whole tree has gone
        self._trees = trees
        self._leases = leases
        self._launches = launches
        self.containers = containers
        self._entries = entries
        self._scribe = scribe
        self._news = news
        self._recording: set[int] = set()
        self._timers: list[tuple[int, int]] = []  # (at, lease), outdated entries do no harm
        self._word_timer_ms = 0
        self.enforced_ms = 0  # leases that ended before this time have been enforced

    @property
    def are_recorded(self) -> bool:
        return not self._recording

    def due_ms(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    def tend_at(self, lease: int, at_ms: int) -> None:
        heapq.heappush(self._timers, (at_ms, lease))

    def fire(self, now_ms: int) -> None:
        self.enforced_ms = now_ms  # the timers that fire now cover every lease that has ended by now
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            _, lease = heapq.heappop(timers)
            if not lease:
                self._enforce_words(now_ms)
            elif (held := self.live.get(lease)) is not None:
                self._tend(held, now_ms)

    def note_started(self, held: Held) -> None:
        held.started_ms = boot_ms()
        self.known[held.lease]["started_ms"] = held.started_ms
        self._news.started(held, held.started_ms)
        if held.timeout_ms:
            held.deadline_ms = held.started_ms + held.timeout_ms
            self.arm(held)

    def arm(self, held: Held) -> None:
        """Timers of the time limit and of the signal before it, which a pause moves."""
        if held.deadline_ms:
            self.tend_at(held.lease, held.deadline_ms)
            if held.signal:
                self.tend_at(held.lease, held.deadline_ms - held.signal_ms)

    def stop(self, held: Held, cause: str, grace_ms: int, now_ms: int) -> None:
        if held.exit_status is None:
            held.cause = held.cause or cause
        kill_at_ms = now_ms + grace_ms
        if held.frozen_since_ms:
            kill_at_ms = now_ms  # another node may hold the task now: it must not continue here
        first = not held.kill_at_ms
        held.kill_at_ms = min(held.kill_at_ms, kill_at_ms) if held.kill_at_ms else kill_at_ms
        if first and held.kill_at_ms > now_ms:
            self._begin_stop(held, now_ms)
        self.tend_at(held.lease, held.kill_at_ms)

    def _begin_stop(self, held: Held, now_ms: int) -> None:
        if not (held.warned and held.signal):
            self._trees.terminate(held)
            return
        left_ms = held.kill_at_ms - now_ms
        held.terminate_at_ms = held.kill_at_ms - min(_LAST_MS, left_ms // 2)
        self.tend_at(held.lease, held.terminate_at_ms)
        self._trees.signal(held)

    def reap(self) -> None:
        now_ms = boot_ms()
        adopted = False
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            held = self.mains.pop(pid, None)
            if held is None:
                self._entries.reaped(pid, status)
                adopted = True
                continue
            if held.sweeps is not None:
                self._on_swept(held.sweeps, status, now_ms)
                continue
            held.exit_status = status
            held.cpu_ms = round((used.ru_utime + used.ru_stime) * 1_000)
            held.rss_mb = used.ru_maxrss >> 10
            if self._trees.may_have_left(held):
                self.tend_at(held.lease, now_ms)
            else:
                self._finish(held)
        # Left-over processes may be younger than this round's survey.
        self._trees.look_anew()
        if adopted:
            for held in list(self.live.values()):
                if held.exit_status is not None:
                    self.tend_at(held.lease, now_ms)

    # -- the record

    def end(self, lease: int, end: Record, *, unkilled: int = 0) -> None:
        """Reported when the scribe has recorded it."""
        end["ended_ms"] = boot_ms()
        self._recording.add(lease)
        self._scribe.end(lease, end, reusable=not unkilled)

    def end_order(self, order: dict[str, Any], end: Record) -> None:
        """The end of an order without a process. Reported at once: a later keeper would not run it without a record."""
        lease = order["lease"]
        self.end(lease, end)
        self._recording.discard(lease)
        self.known[lease] = record_of(order, 0) | {"end": end}
        self._news.ended([lease])

    def recorded(self, ends: list[list[Any]]) -> None:
        told = []
        for lease, end in ends:
            if lease in self._recording:
                self._recording.discard(lease)
                if lease in self.known:
                    self.known[lease]["end"] = end
                    told.append(lease)
        self._news.ended(told)

    def _tend(self, held: Held, now_ms: int) -> None:
        """Does what is due for one lease; safe to call at any time."""
        if held.frozen_since_ms and not held.kill_at_ms and _may_still_start(held):
            self._trees.freeze([held], now_ms)
            self.tend_at(held.lease, now_ms + _FROZEN_CHECK_MS)
        if held.exit_status is not None:
            if not self._trees.members(held):
                self._finish(held)
                return
            if not held.kill_at_ms:
                held.kill_at_ms = now_ms + held.grace_ms
                self._trees.terminate(held)
                for pid in held.entered:
                    hang_up(pid)  # a shell ignores SIGTERM
        elif held.deadline_ms and now_ms >= held.deadline_ms and not held.cause and not held.frozen_since_ms:
            self.stop(held, "timeout", held.grace_ms, now_ms)
        elif _signal_is_due(held, now_ms):
            self._trees.signal(held)
            if not held.signalled:  # its program may not be ready yet
                self.tend_at(held.lease, now_ms + _SIGNAL_AGAIN_MS)
        self._kill_entered(held, now_ms)
        if not held.kill_at_ms:
            return
        if held.terminate_at_ms and held.terminate_at_ms <= now_ms < held.kill_at_ms:
            held.terminate_at_ms = 0
            self._trees.terminate(held)
        if now_ms < held.kill_at_ms:
            self.tend_at(held.lease, min(held.kill_at_ms, now_ms + _SLOW_CHECK_MS))
            return
        self._trees.kill(held)
        if now_ms - held.kill_at_ms > _UNKILLABLE_MS and held.exit_status is not None:
            self._trees.look_anew()
            held.unkilled = len(self._trees.members(held))
            held.error = f"{held.unkilled} processes could not be killed"
            self._conclude(held)
            return
        self.tend_at(held.lease, now_ms + (_CHECK_MS if held.kill_rounds < 10 else _SLOW_CHECK_MS))

    def _kill_entered(self, held: Held, now_ms: int) -> None:
        """Commands inside the run whose clients have gone."""
        for pid, kill_at_ms in held.entered.items():
            if kill_at_ms and now_ms >= kill_at_ms:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)  # it was not waited for: its pid cannot be reused
            elif kill_at_ms:
                self.tend_at(held.lease, kill_at_ms)

    def _finish(self, held: Held) -> None:
        """The whole tree has ended: the end may be recorded."""
        if held.status_fd >= 0:
            if self._launches.has_started(held) and not held.cause:
                self.note_started(held)
            self._launches.close(held)
        if held.container is not None:
            held.container.read()
            if not held.container.gone:
                self._sweep(held)
            if not held.container.has_ended:
                return  # comes back when the engine has removed it
        if self._entries.is_drained(held):  # else it comes back
            self._conclude(held)

    def _conclude(self, held: Held) -> None:
        if held.container is not None:
            self.containers.close(held.container)
        self._trees.release(held)
        del self.live[held.lease]
        self.end(held.lease, _end_of(held), unkilled=held.unkilled)

    # -- containers

    def hear_container(self, held: Held, now_ms: int) -> None:
        """Words of its runner."""
        if held.container is None:
            return
        is_news = held.container.read()
        if held.container.at_end:
            self.containers.close(held.container)  # its end would wake the keeper for ever
        if not is_news:
            return
        self.known[held.lease]["inner"] = held.container.root
        self._news.contained(held)
        if held.frozen_since_ms or held.kill_at_ms:
            self._trees.look_anew()
            self.tend_at(held.lease, now_ms)

    def _sweep(self, held: Held) -> None:
        """Its runner died before it could remove the container."""
        if held.container is None or held.container.sweeping:
            return
        try:
            pid = self.containers.sweep(held.lease, self.known[held.lease]["engine"])
        except OSError:
            self.tend_at(held.lease, boot_ms() + _SWEEP_AGAIN_MS)
            return
        held.container.sweeping = True
        order = {"lease": held.lease, "node": held.node, "grace_ms": 0, "timeout_ms": 0}
        sweeper = Held(order, pid=pid, now_ms=boot_ms(), ticks=held.start_ticks)
        sweeper.sweeps = held
        self.mains[pid] = sweeper

    def _on_swept(self, held: Held, status: int, now_ms: int) -> None:
        if held.container is None or held.lease not in self.live:
            return
        held.container.sweeping = False
        held.container.gone = status == 0
        self.tend_at(held.lease, now_ms if status == 0 else now_ms + _SWEEP_AGAIN_MS)

    # -- the task lease

    def wake_for_word(self, over_ms: int) -> None:
        """One timer for all nodes, at the earliest end; it is set again when it fires."""
        if not self._word_timer_ms or over_ms < self._word_timer_ms:
            self._word_timer_ms = over_ms
            heapq.heappush(self._timers, (over_ms, 0))

    def _enforce_words(self, now_ms: int) -> None:
        self._word_timer_ms = 0
        if next_ms := self._leases.next_end_ms(now_ms):
            self.wake_for_word(next_ms)
        to_freeze: list[Held] = []
        for held in list(self.live.values()):
            if held.frozen_since_ms or not self._leases.is_over(held.node, now_ms):
                continue
            if self._leases.action(held.node) == "stop" or held.kill_at_ms:
                # A run that is being stopped gets no more grace: its task may soon be placed on another node.
                self.stop(held, "lease_over", 0, now_ms)
            else:
                to_freeze.append(held)
        self._trees.freeze(to_freeze, now_ms)
        for held in filter(_may_still_start, to_freeze):
            self.tend_at(held.lease, now_ms + _FROZEN_CHECK_MS)
        self._news.frozen([held.lease for held in to_freeze])


def _signal_is_due(held: Held, now_ms: int) -> bool:
    if held.signalled or not held.signal or held.frozen_since_ms:
        return False
    if held.kill_at_ms:
        return held.terminate_at_ms > now_ms
    return 0 < held.deadline_ms <= now_ms + held.signal_ms


def _may_still_start(held: Held) -> bool:
    """The engine may have got the order to start a container just before its runner was frozen."""
    return held.container is not None and held.container.root is None and held.exit_status is None


def _end_of(held: Held) -> Record:
    """Without the size of its output, which the scribe knows."""
    if held.container is not None:
        held.failure = held.container.end or _RUNNER_DIED
    status = held.exit_status or 0
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    end: Record = {
        "outcome": "signaled" if number else "exited",
        "exit_code": 128 + number if number else os.WEXITSTATUS(status),
        "signal": number,
        "error": held.error,
        "unkilled": held.unkilled,
    }
    if held.container is None:  # its runner is not the task
        end["cpu_ms"], end["rss_mb"] = held.cpu_ms, held.rss_mb
    if held.cause == "lease_over":
        end["outcome"] = "node_fault"
        end["error"] = held.error or "no contact with a scheduler for the time of the task lease"
    elif held.cause:
        end["outcome"] = held.cause
    elif held.failure is not None:
        end["outcome"], end["exit_code"], end["error"] = held.failure
    return end
