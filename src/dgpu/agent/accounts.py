"""The Unix users of tasks: which one a tenant has on this node, and whether the node accepts it.

The scheduler names a Unix user, or a range of uids. In the second case each tenant gets a uid of its own on this node,
which is stored and never given to another tenant. The node has the last word: it starts no task as a user below
`min_uid`, whatever the scheduler says.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from dgpu.agent.launch_as import Account
from dgpu.wire.isolation import uid_range

BOOK = "uids.json"  # in the agent's state directory
KNOWN_SECONDS = 60.0  # a look-up of a user may ask another machine


class IsolationOptions(msgspec.Struct, frozen=True, kw_only=True):
    min_uid: int = 1_000
    groups: tuple[str, ...] = ()  # supplementary groups of every task
    max_processes: int = 16_384  # of one user on this node; 0: no limit


class NoAccount(Exception):  # noqa: N818 - the name states the failure
    """A task cannot run as its tenant's Unix user. One line for people."""

    def __init__(self, reason: str, *, is_of_node: bool = False) -> None:
        super().__init__(reason)
        self.is_of_node = is_of_node  # another node may be able to run the task


class Person(NamedTuple):
    account: Account
    name: str
    home: str  # empty: the task's own directory


class Accounts:
    """`find` may wait for a directory service: use a thread. `known` never waits."""

    def __init__(self, state_dir: Path, tasks_dir: Path, options: IsolationOptions) -> None:
        self._book = UidBook(state_dir / BOOK)
        self._tasks_dir = tasks_dir
        self._is_open = False  # for other users
        self._options = options
        self._known: dict[tuple[str, str], tuple[float, Person]] = {}
        self._giving = threading.Lock()

    def known(self, tenant: str, user: str) -> Person | None:
        """The answer of `find` within the last minute."""
        known = self._known.get((tenant, user))
        return known[1] if known is not None and time.monotonic() - known[0] < KNOWN_SECONDS else None

    def remembered(self, tenant: str, user: str) -> Person:
        """After `known` or `find`, also if the minute has passed since."""
        return self._known[tenant, user][1]

    def find(self, tenant: str, user: str) -> Person:
        """`user`: the name of a Unix user, or a range such as 70000-79999. Raises NoAccount."""
        if (known := self.known(tenant, user)) is not None:
            return known
        if os.geteuid() != 0:
            raise NoAccount("this agent is not root: it cannot run tasks as other users", is_of_node=True)
        if not user:
            raise NoAccount(
                f"tenant {tenant} has no Unix user: add it to isolation.users in scheduler.yaml, then dgpu retry"
            )
        uids = uid_range(user)
        self._open_for_users()
        person = self._named(tenant, user) if uids is None else self._numbered(tenant, uids)
        self._known[tenant, user] = (time.monotonic(), person)
        return person

    def _open_for_users(self) -> None:
        """Other users may pass to their own directories, and cannot list those of others."""
        if self._is_open:
            return
        try:
            self._tasks_dir.mkdir(parents=True, exist_ok=True)
            self._tasks_dir.chmod(0o711)
        except OSError as error:
            raise NoAccount(f"{self._tasks_dir}: {error.strerror}", is_of_node=True) from None
        self._is_open = True

    def _named(self, tenant: str, user: str) -> Person:
        try:
            found = pwd.getpwnam(user)
        except KeyError:
            raise NoAccount(f"this node has no Unix user {user} (tenant {tenant})", is_of_node=True) from None
        self._check(f"{user} (tenant {tenant})", found.pw_uid, found.pw_gid)
        return Person(self._account(found.pw_uid, found.pw_gid), found.pw_name, found.pw_dir)

    def _numbered(self, tenant: str, uids: range) -> Person:
        with self._giving:
            uid = self._book.uid_of(tenant, uids)
        self._check(f"of tenant {tenant}", uid, uid)
        return Person(self._account(uid, uid), f"dgpu-{uid}", "")

    def _check(self, who: str, uid: int, gid: int) -> None:
        if uid < self._options.min_uid:
            raise NoAccount(
                f"the Unix user {who} has uid {uid}, below isolation.min_uid of this node "
                f"({self._options.min_uid})"
            )
        if not gid:
            raise NoAccount(f"the Unix user {who} has the group root")

    def _account(self, uid: int, gid: int) -> Account:
        groups = []
        for name in self._options.groups:
            try:
                groups.append(grp.getgrnam(name).gr_gid)
            except KeyError:
                raise NoAccount(
                    f"this node has no group {name} (isolation.groups)", is_of_node=True
                ) from None
        return Account(uid, gid, tuple(groups), self._options.max_processes)


class UidBook:
    """Every uid that a tenant ever had on this node. A file: it is on disk before the first use of a uid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given: list[tuple[str, int]] | None = None  # read at the first use

    def uid_of(self, tenant: str, uids: range) -> int:
        """Raises NoAccount."""
        given = self.given()
        found = next((uid for owner, uid in given if owner == tenant and uid in uids), None)
        if found is not None:
            return found
        taken = {uid for _, uid in given}
        free = next((uid for uid in uids if uid not in taken and not _exists(uid)), None)
        if free is None:
            raise NoAccount(f"all uids of isolation.users ({uids[0]}-{uids[-1]}) are in use on this node")
        self._write([*given, (tenant, free)])
        return free

    def given(self) -> list[tuple[str, int]]:
        """Tenants and their uids. Raises NoAccount."""
        if self._given is None:
            try:
                self._given = [(str(tenant), int(uid)) for tenant, uid in json.loads(self._path.read_bytes())]
            except FileNotFoundError:
                self._given = []
            except (OSError, ValueError, TypeError) as error:
                # Without it, a tenant could get the files of another one.
                raise NoAccount(f"{self._path} cannot be read: {error}", is_of_node=True) from None
        return self._given

    def _write(self, given: list[tuple[str, int]]) -> None:
        draft = self._path.with_suffix(".new")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(given).encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise NoAccount(f"{self._path} cannot be written: {error.strerror}", is_of_node=True) from None
        self._given = given


def _exists(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
