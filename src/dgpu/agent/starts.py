"""The orders of a keeper, up to the first process of each. Standard library only.

An order waits until the scribe has recorded it and created its directory. Nothing starts while the disk is full
or does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dgpu.agent.containers.kept import Container
from dgpu.agent.corral import Corral
from dgpu.agent.endings import Endings
from dgpu.agent.entries import Entries, Terminal
from dgpu.agent.fences import NO_GROUPS, Fences, Groups
from dgpu.agent.frames import Frame
from dgpu.agent.held import Held
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.launch_as import Account, account_of
from dgpu.agent.launches import Launches
from dgpu.agent.scribe_link import ScribeLink
from dgpu.agent.secret_dirs import HOST_FILE_VARIABLE, SECRETS_VARIABLE
from dgpu.agent.spawn import CannotStart, Child, Ends
from dgpu.agent.starter import Starter
from dgpu.agent.store import Record, record_of
from dgpu.agent.task_leases import TaskLeases
from dgpu.agent.terminal_link import close_all
from dgpu.agent.tree import TICKS_PER_SECOND
from dgpu.wire.ranks import HOST_FILE

_SPAWNS_PER_ROUND = 32  # so that exits and orders are served in between
_ROOM_AGAIN_MS = 1_000

Order = dict[str, Any]


class Starts:
    def __init__(
        self,
        *,
        starter: Starter,
        entries: Entries,
        scribe: ScribeLink,
        launches: Launches,
        corral: Corral,
        fences: Fences,
        leases: TaskLeases,
        endings: Endings,
    ) -> None:
        self._starter = starter
        self._entries = entries
        self._scribe = scribe
        self._launches = launches
        self._corral = corral
        self._fences = fences
        self._leases = leases
        self._endings = endings
        self.queue: dict[int, Order] = {}  # not started yet, in order
        self._asked: dict[int, Record] = {}  # records that the scribe writes now
        self._begun: list[tuple[Order, str, str]] = []  # with the directory, or the reason for having none
        self._ask_at_ms = 0  # not before: the disk was full

    def due_ms(self) -> int | None:
        """When to look at orders again. None: an event triggers it."""
        return self._ask_at_ms if self.queue and not self._asked else None

    def withdraw(self, lease: int, error: str) -> None:
        order = self.queue.pop(lease)
        self._endings.end_order(order, {"outcome": "stopped", "error": error})

    def ask(self, now_ms: int) -> None:
        """Sends the next batch to the scribe: one at a time."""
        if self._asked or not self.queue or now_ms < self._ask_at_ms:
            return
        orders = list(self.queue.values())[:_SPAWNS_PER_ROUND]
        self._asked = {order["lease"]: record_of(order, now_ms) for order in orders}
        dirs = [_directories(order) for order in orders if not order["cwd"] or order.get("tmp")]
        secrets = [
            [order["lease"], order["secrets"], _owner(order)] for order in orders if order.get("secrets")
        ]
        workers = [[order["lease"], _owner(order)] for order in orders if order.get("worker_silence_ms")]
        asked = {"dirs": dirs, "secrets": secrets, "workers": workers}
        self._scribe.begin(list(self._asked.values()), asked)

    def answered(self, answer: Frame, now_ms: int) -> None:
        asked, self._asked = self._asked, {}
        if "full" in answer:
            self._ask_at_ms = now_ms + _ROOM_AGAIN_MS  # the orders wait: another attempt would also fail
            return
        dirs = {lease: (path, error) for lease, path, error in answer.get("dirs", ())}
        for lease, path, error in answer.get("secrets", ()):
            if error:
                dirs[lease] = ("", f"secrets: {error}")
            elif (order := self.queue.get(lease)) is not None:
                order["env"][SECRETS_VARIABLE] = path
                if HOST_FILE in order["secrets"]:
                    order["env"][HOST_FILE_VARIABLE] = f"{path}/{HOST_FILE}"
        for lease, record in asked.items():
            order = self.queue.pop(lease, None)
            if order is None:
                continue  # withdrawn meanwhile; its end has been recorded too
            if "error" in answer:
                self._endings.end_order(order, {"outcome": "node_fault", "error": answer["error"]})
                continue
            self._endings.known[lease] = record
            self._begun.append((order, *dirs.get(lease, ("", ""))))

    def start_begun(self) -> None:
        if not self._begun:
            return
        begun, self._begun = self._begun, []
        for order, own_dir, error in begun:
            self._start(order, own_dir, error)
        os.chdir("/")

    def _start(self, order: Order, own_dir: str, dir_error: str) -> None:
        lease, now_ms = order["lease"], boot_ms()
        if (refusal := self._refusal(order, dir_error, now_ms)) is not None:
            self._endings.end(lease, refusal)
            return
        container: Container | None = None
        child: Child | CannotStart
        if "container" in order:
            child, container = self._spawn_container(order, own_dir)
        else:
            child = self._spawn(order, own_dir)
        if isinstance(child, CannotStart):
            end = {"outcome": child.outcome, "exit_code": child.exit_code, "error": child.error}
            self._endings.end(lease, end)
            return
        held = Held(order, pid=child.pid, now_ms=boot_ms(), ticks=now_ms * TICKS_PER_SECOND // 1000)
        self._endings.mains[held.pid] = held
        self._endings.live[lease] = held
        held.directory = own_dir.rpartition("/")[2]
        held.cwd = held.cwd or own_dir
        self._scribe.output(lease, child.output_fd, child.errors_fd, child.files_fd)
        self._endings.known[lease] |= {"started_ms": 0, "pid": held.pid}
        if container is not None:
            self._endings.containers.open(held, container)
        elif held.uid is not None and self._corral.usable:
            held.grouped = held.fenced = True
        elif order.get("most_mb") and self._corral.gather(lease, [held.pid]):
            held.grouped = True  # its share of a GPU is enforced: a daemon must not escape
        if child.status_fd >= 0:
            self._launches.open(held, child.status_fd)
        else:
            self._endings.note_started(held)

    def _spawn(self, order: Order, own_dir: str) -> Child | CannotStart:
        if not order.get("account"):
            return self._spawn_at_terminal(order, own_dir, NO_GROUPS)
        child: Child | CannotStart
        try:
            with self._fences.made(order) as groups:
                child = self._spawn_at_terminal(order, own_dir, groups)
        except OSError as error:  # of the groups: a spawn returns its errors
            child = CannotStart("node_fault", 126, f"cannot limit the task: {error}")
        if isinstance(child, CannotStart):
            self._fences.release(order["lease"])
            self._corral.release(order["lease"])
        return child

    def _spawn_container(self, order: Order, own_dir: str) -> tuple[Child | CannotStart, Container | None]:
        """Its runner has the terminal, if the order asks for one, and passes the bytes on to the container."""
        if not order.get("terminal"):
            return self._endings.containers.spawn(order, own_dir)
        found: list[Container] = []

        def start(terminal: Terminal) -> Child | CannotStart:
            child, container = self._endings.containers.spawn(order, own_dir, terminal.slave)
            found.extend([] if container is None else [container])
            return child

        child = self._at_terminal(order, None, start)
        return child, found[0] if found else None

    def _spawn_at_terminal(self, order: Order, own_dir: str, groups: Groups) -> Child | CannotStart:
        """With a terminal, if the order asks for one."""
        if not order.get("terminal"):
            return self._starter.spawn(order, own_dir, groups)
        return self._at_terminal(
            order,
            account_of(order),
            lambda terminal: self._starter.spawn(order, own_dir, groups, Ends(terminal=terminal.path)),
        )

    def _at_terminal(
        self, order: Order, account: Account | None, start: Callable[[Terminal], Child | CannotStart]
    ) -> Child | CannotStart:
        order["env"].setdefault("TERM", "xterm")
        try:
            terminal = self._entries.open_terminal(account and account.uid, account and account.gid)
            log_read, log_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            return CannotStart("node_fault", 126, f"cannot open a terminal: {error}")
        child = start(terminal)
        os.close(terminal.slave)
        if isinstance(child, CannotStart):
            close_all((terminal.master, log_read, log_write))
            return child
        self._entries.hold_terminal(order["lease"], terminal.master, log_write)
        return child._replace(output_fd=log_read)

    def _refusal(self, order: Order, dir_error: str, now_ms: int) -> Record | None:
        if now_ms >= order.get("start_by_ms", now_ms + 1):
            # Read or recorded too late, after this process or the disk was stopped: the agent has withdrawn it.
            return {"outcome": "stopped", "error": "its start deadline passed before the start"}
        if self._leases.is_over(order["node"], now_ms):
            # The order was read too late: the task may already be placed on another node.
            return {"outcome": "node_fault", "error": "the task lease ended before the start"}
        if dir_error:
            error = f"cannot create the task's directory: {dir_error}"
            return {"outcome": "node_fault", "exit_code": 126, "error": error}
        return None


def _directories(order: Order) -> list[Any]:
    """As `scribe_link` describes them."""
    name = "" if order["cwd"] else order.get("dir") or f"{order['lease']:d}"
    return [order["lease"], name, order.get("tmp", ""), _owner(order), order.get("staged", "")]


def _owner(order: Order) -> list[int] | None:
    account = account_of(order)
    return account and [account.uid, account.gid]
