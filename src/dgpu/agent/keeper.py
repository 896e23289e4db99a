"""The parent of all tasks of a node. Standard library only, one thread, which waits only for the next event.

It outlives the agent, which talks to it in frames over a Unix socket and finds exit codes after a restart. It ends
trees (by order, at a time limit, when a main process leaves others behind) and enforces the task lease when no
scheduler has been in contact for too long. It touches no disk: the scribe, a separate process, records leases, creates
directories and writes output, so a disk that hangs delays only starts and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

from dgpu.agent.containers.kept import ContainerRunners
from dgpu.agent.corral import Corral
from dgpu.agent.door import Door
from dgpu.agent.endings import Endings
from dgpu.agent.entries import Entries
from dgpu.agent.fences import Fences
from dgpu.agent.frames import OLDEST_PROTOCOL, PROTOCOL, Frame
from dgpu.agent.held import Held, Trees
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.launches import Launches
from dgpu.agent.lifeline import Lifeline
from dgpu.agent.news import News
from dgpu.agent.scribe_link import ScribeLink
from dgpu.agent.starter import Starter
from dgpu.agent.starts import Starts
from dgpu.agent.store import Record, record_of
from dgpu.agent.task_leases import TaskLeases

_AGENT_SILENT_MS = (
    60_000  # then its connection is closed; an agent that wakes reconnects and gets the full state
)


class Keeper:
    """`known`: the leases in the log of the last keeper. `scribe`, `terminals`: the sockets to these processes."""

    def __init__(
        self,
        settings: KeeperSettings,
        *,
        known: dict[int, Record],
        scribe: socket.socket,
        terminals: socket.socket,
        lifeline: Lifeline,
    ) -> None:
        self._settings = settings
        self._lifeline = lifeline
        directory = Path(settings.directory)
        self.id = os.urandom(8).hex()
        self._known = known
        self._live: dict[int, Held] = {}
        self._leases = TaskLeases()
        self._agent_protocol = OLDEST_PROTOCOL
        self._agent_heard_ms = 0
        self._agent_left_ms = boot_ms()
        self._stopping = False
        self._stop_asked = False
        self._corral = Corral(self.id)
        self._fences = Fences(self._corral, self.id)
        mains: dict[int, Held] = {}
        self._trees = Trees(
            keeper_id=self.id, mains=mains, live=self._live, corral=self._corral, fences=self._fences
        )
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._scribe = ScribeLink(scribe, self._epoll)
        self._door = Door(directory / "keeper.sock", self._epoll)
        self._news = News(self._door, known)
        self._launches = Launches(self._epoll)
        starter = Starter(settings.work_dir)
        self._entries = Entries(
            terminals, self._epoll, starter=starter, live=self._live, corral=self._corral, fences=self._fences
        )
        self._make_runs(starter, mains)
        self._recover()
        self._leave_record(directory / "keeper.json")

    def _make_runs(self, starter: Starter, mains: dict[int, Held]) -> None:
        self._endings = Endings(
            known=self._known,
            mains=mains,
            live=self._live,
            trees=self._trees,
            leases=self._leases,
            launches=self._launches,
            containers=ContainerRunners(self.id, self._epoll),
            entries=self._entries,
            scribe=self._scribe,
            news=self._news,
        )
        self._starts = Starts(
            starter=starter,
            entries=self._entries,
            scribe=self._scribe,
            launches=self._launches,
            corral=self._corral,
            fences=self._fences,
            leases=self._leases,
            endings=self._endings,
        )

    def _leave_record(self, path: Path) -> None:
        """For the next keeper, which ends what this one leaves."""
        groups = {"cgroup": self._corral.path, "groups": self._fences.paths}
        path.write_text(json.dumps({"id": self.id, "pid": os.getpid(), **groups}))

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
        self._fences.close()
        self._door.close()

    # -- the loop

    def _on_sigterm(self, *_: object) -> None:
        self._stop_asked = True  # handled by the loop: a signal may arrive at any point

    def _round(self) -> None:
        events = self._epoll.poll(self._patience())
        self._trees.look_anew()
        children = False
        for fd, mask in events:
            if (launched := self._launches.find(fd)) is not None:
                if self._launches.has_started(launched) and not launched.cause:
                    self._endings.note_started(launched)
            elif (contained := self._endings.containers.find(fd)) is not None:
                self._endings.hear_container(contained, boot_ms())
            elif fd == self._wake_read:
                children = True
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            elif fd == self._scribe.fileno():
                self._serve_scribe(mask)
            elif fd == self._entries.fileno():
                for lease in self._entries.serve(mask, boot_ms()):
                    self._endings.tend_at(lease, boot_ms())
            else:
                self._serve_door(fd, mask)
        if children:
            self._endings.reap()
        if self._stop_asked:
            self._stop_asked = False
            self._stop_all()
        self._mark_lifeline()  # before any process exists
        self._starts.ask(boot_ms())
        self._scribe.flush(boot_ms())  # the scribe works while the next processes start
        self._starts.start_begun()
        self._endings.fire(boot_ms())
        self._mark_lifeline()
        self._scribe.flush(boot_ms())
        self._news.tell(boot_ms())
        self._check_agent(boot_ms())

    def _patience(self) -> float:
        waits = [at_ms for at_ms in (self._endings.due_ms(), self._starts.due_ms()) if at_ms is not None]
        if not (self._starts.queue or self._door.connected or self._live):
            waits.append(self._agent_left_ms + self._settings.idle_exit_ms)
        if (news_due_ms := self._news.due_ms) is not None:
            waits.append(news_due_ms)
        if not waits:
            return -1
        return (left_ms + 1) / 1000 if (left_ms := min(waits) - boot_ms()) > 0 else 0

    def _is_over(self) -> bool:
        if self._live or self._starts.queue or not self._endings.are_recorded:
            return False
        if self._stopping:
            return True
        idle_ms = boot_ms() - self._agent_left_ms
        return not self._door.connected and idle_ms >= self._settings.idle_exit_ms

    def _check_agent(self, now_ms: int) -> None:
        """An agent that stops pinging is hung: unread messages would accumulate."""
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

    def _serve_scribe(self, mask: int) -> None:
        for answer in self._scribe.serve(mask):
            self._endings.recorded(answer.get("recorded", []))
            if "begun" in answer:
                self._starts.answered(answer["begun"], boot_ms())

    # -- what the agent orders

    def _obey(self, frame: Frame) -> None:
        now_ms = boot_ms()
        if "agent" in frame:
            self._agent_protocol = frame["agent"]["protocol"]
        for node, at_ms, lease_ms, action in frame.get("word", ()):
            if over_ms := self._leases.hear(node, at_ms, lease_ms, action):
                self._endings.wake_for_word(over_ms)
        if "ping" in frame:
            self._mark_lifeline()
            self._pong(frame["ping"], now_ms)
        for lease in frame.get("thaw", ()):
            if lease in self._live:
                self._thaw(self._live[lease], now_ms)
        for order in frame.get("spawn", ()):
            self._accept(order)
        for lease in frame.get("warn", ()):
            if lease in self._live:
                self._live[lease].warned = True
        for lease, grace_ms, cause in frame.get("stop", ()):
            if lease in self._starts.queue:
                self._starts.withdraw(lease, "stopped before it was started")
            elif lease in self._live:
                held = self._live[lease]
                self._endings.stop(held, cause, held.grace_ms if grace_ms else 0, now_ms)
        if forgotten := [lease for lease in frame.get("forget", ()) if lease not in self._live]:
            for lease in forgotten:
                self._known.pop(lease, None)
            self._scribe.forget(forgotten)
        if "shutdown" in frame:
            self._stop_all()

    def _pong(self, number: int, now_ms: int) -> None:
        answer: Frame = {"pong": number}
        if self._scribe.is_stalled(now_ms):
            answer["stalled"] = True
        self._door.send(answer)
        self._scribe.ping(number)

    def _thaw(self, held: Held, now_ms: int) -> None:
        if self._leases.is_over(held.node, now_ms):
            self._news.frozen([held.lease])  # read too late: another node may hold the lease by now
            return
        self._trees.thaw(held, now_ms)
        self._endings.tend_at(held.lease, now_ms)
        self._endings.arm(held)

    def _accept(self, order: dict[str, Any]) -> None:
        """A repeated order is answered from memory, never by a second process."""
        lease = order["lease"]
        if lease in self._live:
            if self._live[lease].status_fd < 0:
                self._news.started(self._live[lease], boot_ms())
        elif lease in self._known:
            self._news.ended([lease])  # if its end is recorded; otherwise it is reported then
        elif lease not in self._starts.queue and not self._stopping:
            self._starts.queue[lease] = order

    def _stop_all(self) -> None:
        self._stopping = True
        now_ms = boot_ms()
        for lease in list(self._starts.queue):
            self._starts.withdraw(lease, "the node is stopping")
        for held in self._live.values():
            self._endings.stop(held, "stopped", held.grace_ms, now_ms)

    def _recover(self) -> None:
        """Runs of the last keeper have ended: its guard ensured that before this keeper could start."""
        for lease, record in self._known.items():
            if "end" not in record:
                error = "the keeper died, and its tasks with it"
                record["end"] = {"outcome": "node_fault", "error": error, "ended_ms": boot_ms()}
                self._scribe.end(lease, record["end"], reusable=False)

    def _mark_lifeline(self) -> None:
        """Tells the guard the next lease to enforce, including ends since the timers fired."""
        is_needed = self._live or self._starts.queue
        self._lifeline.set(self._leases.next_end_ms(self._endings.enforced_ms) if is_needed else 0)

    # -- what the agent is told

    def _greet(self) -> None:
        leases = []
        for lease, record in self._known.items():
            held = self._live.get(lease)
            leases.append(record | {"frozen": bool(held and held.frozen_since_ms)})
        # Queued orders of an earlier agent will still run: the next agent must know them.
        leases += [record_of(order, 0) for order in self._starts.queue.values()]
        self._news.drop()
        hello = {
            "protocol": PROTOCOL,
            "oldest": OLDEST_PROTOCOL,
            "keeper": self.id,
            "pid": os.getpid(),
            "leases": leases,
            "dirs": [each.directory for each in self._live.values() if each.directory],  # for older agents
            "names_dirs": True,  # by task and attempt
        }
        self._door.send({"hello": hello})
