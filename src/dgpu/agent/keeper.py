"""The parent of all tasks of a node. Standard library only, one thread, no waiting but for the next event.

It outlives the agent, which talks to it in frames over a Unix socket and finds exit codes after a restart. It ends
trees (on order, at a time limit, when a main process leaves others behind), writes output to files, and enforces
the task lease when no scheduler has been heard for too long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import heapq
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

from dgpu.agent.chunks import DEFAULT_CAP_BYTES, ChunkWriter
from dgpu.agent.corral import Corral
from dgpu.agent.disk_room import DiskRoom
from dgpu.agent.door import Door
from dgpu.agent.frames import OLDEST_PROTOCOL, PROTOCOL, Frame
from dgpu.agent.held import Held, Trees
from dgpu.agent.launches import Launches
from dgpu.agent.lifeline import Lifeline
from dgpu.agent.news import News
from dgpu.agent.pipes import Pipes
from dgpu.agent.spawn import CannotStart
from dgpu.agent.starter import Starter
from dgpu.agent.store import FILE_NAME, LeaseLog, Record, record_of
from dgpu.agent.task_leases import TaskLeases
from dgpu.agent.tree import TICKS_PER_SECOND
from dgpu.agent.workdirs import WorkDirs

_SPAWNS_PER_ROUND = 32  # so that exits and output are served between them
_CHECK_MS = 25
_SLOW_CHECK_MS = 500
_UNKILLABLE_MS = 60_000
_ROOM_AGAIN_MS = 1_000
_AGENT_SILENT_MS = (
    60_000  # then its connection is closed; when it wakes, it connects again and is told everything
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeeperSettings:
    directory: str  # socket, lock, lease log
    work_dir: str  # a directory per run, see wire.run_dirs
    output_dir: str
    output_cap_bytes: int = DEFAULT_CAP_BYTES
    idle_exit_ms: int = 600_000  # without an agent and without a running task
    soft_files: int = 0  # the limit of open files that tasks get; 0: that of the keeper at its start


def boot_ms() -> int:
    """Milliseconds since boot, time asleep included: what a lease is counted in."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Keeper:
    def __init__(self, settings: KeeperSettings, lifeline: Lifeline | None = None) -> None:
        self._settings = settings
        self._lifeline = lifeline or Lifeline()
        directory = Path(settings.directory)
        self.id = os.urandom(8).hex()
        self._log = LeaseLog(directory / FILE_NAME)
        self._mains: dict[int, Held] = {}
        self._live: dict[int, Held] = {}
        self._queue: dict[int, dict[str, Any]] = {}  # ordered, not started yet, in order
        self._room = DiskRoom((settings.directory, settings.work_dir))
        self._start_at_ms = 0  # not before: the disk was full
        self._timers: list[tuple[int, int]] = []  # (at, lease), outdated entries do no harm
        self._leases = TaskLeases()
        self._enforced_ms = 0
        self._agent_protocol = OLDEST_PROTOCOL
        self._agent_heard_ms = 0
        self._ends: dict[int, Record] = {}  # of this round
        self._stopping = False
        self._stop_asked = False
        self._word_timer_ms = 0
        self._agent_left_ms = boot_ms()
        self._corral = Corral(self.id)
        self._trees = Trees(keeper_id=self.id, mains=self._mains, live=self._live, corral=self._corral)
        self._work_dirs = WorkDirs(Path(settings.work_dir))
        self._spawner = Starter(self._work_dirs)
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._door = Door(directory / "keeper.sock", self._epoll)
        self._news = News(self._door, self._log)
        self._pipes = Pipes(self._epoll)
        self._launches = Launches(self._epoll)
        self._recover()
        (directory / "keeper.json").write_text(
            json.dumps({"id": self.id, "pid": os.getpid(), "cgroup": self._corral.path})
        )

    def run(self) -> None:
        os.chdir("/")
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while not self._is_over():
            self._round()
        self._corral.close()
        self._door.close()
        self._log.close()

    # -- the loop

    def _on_sigterm(self, *_: object) -> None:
        self._stop_asked = True  # obeyed by the loop: a signal may arrive in the middle of anything

    def _round(self) -> None:
        events = self._epoll.poll(self._patience())
        self._trees.look_anew()
        children = False
        for fd, mask in events:
            if self._pipes.serve(fd):
                continue
            if (launched := self._launches.find(fd)) is not None:
                if self._launches.has_started(launched) and not launched.cause:
                    self._note_started(launched)
            elif fd == self._wake_read:
                children = True
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                self._serve_door(fd, mask)
        if children:
            self._reap()
        if self._stop_asked:
            self._stop_asked = False
            self._stop_all()
        if self._queue and boot_ms() >= self._start_at_ms:
            self._start_some()
        self._fire_timers(boot_ms())
        self._mark_lifeline()
        if self._ends:
            self._record_ends()
        self._news.tell(boot_ms())
        self._check_agent(boot_ms())

    def _patience(self) -> float:
        waits = [self._timers[0][0]] if self._timers else []
        if self._queue:
            waits.append(self._start_at_ms)
        elif not self._door.connected and not self._live:
            waits.append(self._agent_left_ms + self._settings.idle_exit_ms)
        if (news_due_ms := self._news.due_ms) is not None:
            waits.append(news_due_ms)
        if not waits:
            return -1
        return (left_ms + 1) / 1000 if (left_ms := min(waits) - boot_ms()) > 0 else 0

    def _is_over(self) -> bool:
        if self._live or self._queue:
            return False
        if self._stopping:
            return True
        idle_ms = boot_ms() - self._agent_left_ms
        return not self._door.connected and idle_ms >= self._settings.idle_exit_ms

    def _check_agent(self, now_ms: int) -> None:
        """An agent that pings and no longer does is hung: what it has not read would pile up."""
        is_silent = now_ms - self._agent_heard_ms >= _AGENT_SILENT_MS
        if is_silent and self._door.connected and self._agent_protocol > 1:
            self._door.hang_up()
            self._agent_left_ms = now_ms
            self._news.drop()

    def _serve_door(self, fd: int, mask: int) -> None:
        arrived = self._door.serve(fd, mask)
        self._agent_heard_ms = boot_ms()
        for frame in arrived.frames:
            self._obey(frame)
        if arrived.left:
            self._agent_left_ms = boot_ms()
            self._news.drop()
        if arrived.joined:
            self._agent_protocol = OLDEST_PROTOCOL  # until it says more
            self._greet()

    # -- what the agent orders

    def _obey(self, frame: Frame) -> None:
        now_ms = boot_ms()
        if "agent" in frame:
            self._agent_protocol = frame["agent"]["protocol"]
        for node, at_ms, lease_ms, action in frame.get("word", ()):
            if over_ms := self._leases.hear(node, at_ms, lease_ms, action):
                self._wake_for_word(over_ms)
        if "ping" in frame:
            self._mark_lifeline()
            self._door.send({"pong": frame["ping"]})
        for lease in frame.get("thaw", ()):
            if lease not in self._live:
                continue
            if self._leases.is_over(self._live[lease].node, now_ms):
                self._news.frozen([lease])  # read too late: the lease may have been given away by now
                continue
            self._trees.thaw(self._live[lease], now_ms)
            self._tend_at(lease, now_ms)
        for order in frame.get("spawn", ()):
            self._accept(order)
        for lease, grace_ms, cause in frame.get("stop", ()):
            if lease in self._queue:
                order = self._queue.pop(lease)
                self._end(lease, {"outcome": "stopped", "error": "stopped before it was started"}, order)
            elif lease in self._live:
                self._stop(self._live[lease], cause, grace_ms, now_ms)
        if forgotten := frame.get("forget"):
            self._log.forget([lease for lease in forgotten if lease not in self._live])
        if "shutdown" in frame:
            self._stop_all()

    def _accept(self, order: dict[str, Any]) -> None:
        """A repeated order is answered by what is known, never by a second process."""
        lease = order["lease"]
        if lease in self._live:
            if self._live[lease].status_fd < 0:
                self._news.started(self._live[lease], boot_ms())
        elif lease in self._log.live and "end" in self._log.live[lease]:
            self._news.ended([lease])
        elif lease not in self._queue and not self._stopping:
            self._queue[lease] = order

    def _stop(self, held: Held, cause: str, grace_ms: int, now_ms: int) -> None:
        if held.exit_status is None:
            held.cause = held.cause or cause
        kill_at_ms = now_ms + grace_ms
        if held.frozen_since_ms:
            kill_at_ms = now_ms  # whoever else holds the task now must not meet it awake
        first = not held.kill_at_ms
        held.kill_at_ms = min(held.kill_at_ms, kill_at_ms) if held.kill_at_ms else kill_at_ms
        if first and held.kill_at_ms > now_ms:
            self._trees.terminate(held)
        self._tend_at(held.lease, held.kill_at_ms)

    def _stop_all(self) -> None:
        self._stopping = True
        now_ms = boot_ms()
        for lease in list(self._queue):
            order = self._queue.pop(lease)
            self._end(lease, {"outcome": "stopped", "error": "the node is stopping"}, order)
        for held in self._live.values():
            self._stop(held, "stopped", held.grace_ms, now_ms)

    # -- starting

    def _start_some(self) -> None:
        now_ms = boot_ms()
        self._mark_lifeline()  # before any process exists
        if self._room.is_full():
            self._start_at_ms = now_ms + _ROOM_AGAIN_MS  # they wait: another attempt would end no better
            return
        orders = list(self._queue.values())[:_SPAWNS_PER_ROUND]
        try:
            self._log.begin([record_of(order, now_ms) for order in orders])
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                self._start_at_ms = now_ms + _ROOM_AGAIN_MS
                return
            why = f"cannot keep a record: {error.strerror}"
            for order in orders:
                end = {"outcome": "node_fault", "error": why}
                self._end(order["lease"], end, self._queue.pop(order["lease"]))
            return
        for order in orders:
            self._start(self._queue.pop(order["lease"]))
        os.chdir("/")

    def _start(self, order: dict[str, Any]) -> None:
        lease = order["lease"]
        now_ms = boot_ms()
        if now_ms >= order.get("start_by_ms", now_ms + 1):
            # Read too late, after a stop of this process: the agent has withdrawn it by now.
            self._end(lease, {"outcome": "stopped", "error": "its start deadline was over before the start"})
            return
        if self._leases.is_over(order["node"], now_ms):
            # The order was read too late: the scheduler may have given the lease to another node by now.
            self._end(lease, {"outcome": "node_fault", "error": "the task lease was over before the start"})
            return
        child = self._spawner.spawn(order)
        if isinstance(child, CannotStart):
            self._end(lease, {"outcome": child.outcome, "exit_code": child.exit_code, "error": child.error})
            return
        held = Held(
            order,
            pid=child.pid,
            output_fd=child.output_fd,
            output=ChunkWriter(
                Path(f"{self._settings.output_dir}/{lease:d}"), self._settings.output_cap_bytes
            ),
            now_ms=boot_ms(),
            ticks=now_ms * TICKS_PER_SECOND // 1000,
        )
        self._mains[held.pid] = held
        self._live[lease] = held
        self._pipes.open(held)
        self._log.live[lease] |= {"started_ms": 0, "pid": held.pid}
        if order.get("most_mb") and self._corral.gather(lease, [held.pid]):
            held.grouped = True  # its share of a GPU is enforced: a daemon must not get away from it
        if child.status_fd >= 0:
            self._launches.open(held, child.status_fd)
        else:
            self._note_started(held)

    def _note_started(self, held: Held) -> None:
        held.started_ms = boot_ms()
        self._log.live[held.lease]["started_ms"] = held.started_ms
        self._news.started(held, held.started_ms)
        if held.timeout_ms:
            held.deadline_ms = held.started_ms + held.timeout_ms
            self._tend_at(held.lease, held.deadline_ms)

    # -- ending

    def _reap(self) -> None:
        now_ms = boot_ms()
        adopted = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            held = self._mains.pop(pid, None)
            if held is None:
                adopted = True
                continue
            held.exit_status = status
            if self._trees.may_have_left(held):
                self._tend_at(held.lease, now_ms)
            else:
                self._finish(held)
        # What those who ended left behind may be younger than a look that this round has taken before.
        self._trees.look_anew()
        if adopted:
            for held in list(self._live.values()):
                if held.exit_status is not None:
                    self._tend_at(held.lease, now_ms)

    def _fire_timers(self, now_ms: int) -> None:
        self._enforced_ms = now_ms  # every lease that is over by now has its timer among those that fire
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            _, lease = heapq.heappop(timers)
            if lease:
                held = self._live.get(lease)
                if held is not None:
                    self._tend(held, now_ms)
            else:
                self._enforce_words(now_ms)

    def _tend(self, held: Held, now_ms: int) -> None:
        """Whatever is due for one lease; safe to call at any time."""
        if held.exit_status is not None:
            if not self._trees.members(held):
                self._finish(held)
                return
            if not held.kill_at_ms:
                held.kill_at_ms = now_ms + held.grace_ms
                self._trees.terminate(held)
        elif held.deadline_ms and now_ms >= held.deadline_ms and not held.cause and not held.frozen_since_ms:
            self._stop(held, "timeout", held.grace_ms, now_ms)
        if not held.kill_at_ms:
            return
        if now_ms < held.kill_at_ms:
            self._tend_at(held.lease, min(held.kill_at_ms, now_ms + _SLOW_CHECK_MS))
            return
        self._trees.kill(held)
        if now_ms - held.kill_at_ms > _UNKILLABLE_MS and held.exit_status is not None:
            self._trees.look_anew()
            held.unkilled = len(self._trees.members(held))
            held.error = f"{held.unkilled} processes could not be killed"
            self._finish(held)
            return
        self._tend_at(held.lease, now_ms + (_CHECK_MS if held.kill_rounds < 10 else _SLOW_CHECK_MS))

    def _finish(self, held: Held) -> None:
        """The whole tree has gone: the end may be told."""
        if held.status_fd >= 0:
            if self._launches.has_started(held) and not held.cause:
                self._note_started(held)
            self._launches.close(held)
        self._pipes.close(held)
        self._trees.release(held)
        del self._live[held.lease]
        status = held.exit_status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        end: Record = {
            "outcome": "signaled" if number else "exited",
            "exit_code": 128 + number if number else os.WEXITSTATUS(status),
            "signal": number,
            "error": held.error,
            "output_bytes": held.output.total_bytes,
            "unkilled": held.unkilled,
        }
        if held.output.dropped_bytes:
            end["output_lost"] = held.output.dropped_bytes
        if held.cause == "lease_over":
            end["outcome"] = "node_fault"
            end["error"] = held.error or "no scheduler was heard for the time of the task lease"
        elif held.cause:
            end["outcome"] = held.cause
        elif held.failure is not None:
            end["outcome"], end["exit_code"], end["error"] = held.failure
        self._end(held.lease, end)

    def _end(self, lease: int, end: Record, order: dict[str, Any] | None = None) -> None:
        end["ended_ms"] = boot_ms()
        self._work_dirs.give_back(lease, reusable=not end.get("unkilled"))
        self._ends[lease] = end
        if order is not None and lease not in self._log.live:
            self._log.live[lease] = record_of(order, 0)  # never begun; known until it is forgotten

    def _record_ends(self) -> None:
        """To the file first, to the agent afterwards."""
        self._log.end(self._ends)
        self._news.ended(self._ends)
        self._ends = {}

    def _recover(self) -> None:
        """What the last keeper had running is gone: its guard saw to that before this one could start."""
        lost = [lease for lease, record in self._log.live.items() if "end" not in record]
        for lease in lost:
            self._end(lease, {"outcome": "node_fault", "error": "the keeper died, and its tasks with it"})
        if self._ends:
            self._log.end(self._ends)
            self._ends = {}

    # -- the task lease

    def _wake_for_word(self, over_ms: int) -> None:
        """One timer for all nodes, at the earliest end; it is set again when it fires."""
        if not self._word_timer_ms or over_ms < self._word_timer_ms:
            self._word_timer_ms = over_ms
            heapq.heappush(self._timers, (over_ms, 0))

    def _enforce_words(self, now_ms: int) -> None:
        self._word_timer_ms = 0
        if next_ms := self._leases.next_end_ms(now_ms):
            self._wake_for_word(next_ms)
        to_freeze: list[Held] = []
        for held in list(self._live.values()):
            if held.frozen_since_ms or not self._leases.is_over(held.node, now_ms):
                continue
            if self._leases.action(held.node) == "stop" or held.kill_at_ms:
                # One that is ending already has no more grace: its task may be given to another node soon.
                self._stop(held, "lease_over", 0, now_ms)
            else:
                to_freeze.append(held)
        self._trees.freeze(to_freeze, now_ms)
        self._news.frozen([held.lease for held in to_freeze])

    def _mark_lifeline(self) -> None:
        """Tells the guard which lease has to be enforced next. Ends that passed since the timers fired count."""
        is_needed = self._live or self._queue
        self._lifeline.set(self._leases.next_end_ms(self._enforced_ms) if is_needed else 0)

    def _tend_at(self, lease: int, at_ms: int) -> None:
        heapq.heappush(self._timers, (at_ms, lease))

    # -- what the agent is told

    def _greet(self) -> None:
        leases = []
        for lease, record in self._log.live.items():
            held = self._live.get(lease)
            leases.append(record | {"frozen": bool(held and held.frozen_since_ms)})
        # Orders of a predecessor that are still queued will run: its successor must know them.
        leases += [record_of(order, 0) for order in self._queue.values()]
        self._news.drop()
        hello = {
            "protocol": PROTOCOL,
            "oldest": OLDEST_PROTOCOL,
            "keeper": self.id,
            "pid": os.getpid(),
            "leases": leases,
            "dirs": self._work_dirs.names(),  # for agents of older versions, which delete others
            "names_dirs": True,  # by task and attempt
        }
        self._door.send({"hello": hello})
