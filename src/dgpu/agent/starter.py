"""Chooses how to start a task's process, so that no start can block the keeper. Standard library only."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

from dgpu.agent.fences import NO_GROUPS, Groups
from dgpu.agent.launch_as import Account, Launcher, account_of
from dgpu.agent.mounts import Mounts
from dgpu.agent.output_files import output_files_of
from dgpu.agent.spawn import NO_PROGRAM, CannotStart, Child, Ends, Spawner, failure_of, one_line
from dgpu.agent.spawn_apart import Apart, spawn_apart

_MAX_KNOWN = 1_024
_KNOWN_SECONDS = 1.0  # a link may change: a result is reused only within this time


class Starter:
    def __init__(self, work_dir: str) -> None:
        self._work_dir = work_dir  # of the node, for tasks without a directory
        self._spawner = Spawner()
        self._launcher = Launcher()
        self._mounts = Mounts()
        self._known: dict[tuple[str, str, str], tuple[float, bool]] = {}

    def spawn(
        self,
        order: dict[str, Any],
        own_dir: str,
        groups: Groups = NO_GROUPS,
        ends: Ends | None = None,
    ) -> Child | CannotStart:
        """`own_dir`: created for a task without a directory. `groups`: of an isolated task. `ends`: its streams, if it
        does not write into a pipe.
        """
        cwd: str = order["cwd"]
        if (account := account_of(order)) is not None:
            return self._spawn_as(account, order, cwd or own_dir, groups, ends)
        files = output_files_of(order)
        if files is None and self._cannot_hang(cwd, order["argv"][0], order["env"].get("PATH", os.defpath)):
            return self._spawner.spawn(order, own_dir, ends)
        apart = Apart(self._spawner.null, self._spawner.limits, ends=ends, files=files)
        try:
            return spawn_apart(cwd or own_dir, order["argv"], order["env"], apart)
        except OSError as error:
            return failure_of(error, order["argv"][0])

    def _spawn_as(
        self, account: Account, order: dict[str, Any], cwd: str, groups: Groups, ends: Ends | None
    ) -> Child | CannotStart:
        """The child uses the task's paths, as the task's user, and may hang without harm."""
        argv, env = order["argv"], order["env"]
        null, limits = self._spawner.null, self._spawner.limits
        if not cwd.startswith("/"):
            return CannotStart("cannot_start", 126, f"workdir {one_line(cwd)} is not an absolute path")
        if not argv[0] or "\0" in argv[0]:
            return NO_PROGRAM
        try:
            files = output_files_of(order)
            if files is not None or not self._launcher.usable:
                apart = Apart(null, limits, account, tuple(groups.entries), ends, files)
                return spawn_apart(cwd, argv, env, apart)
            return self._launcher.launch(
                account, cwd, argv, env, null=null, limits=limits, groups=groups, ends=ends
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                return failure_of(error, argv[0])
            return CannotStart("node_fault", 126, f"cannot start as another user: {error.strerror}")
        except ValueError as error:
            return failure_of(error, argv[0])

    def _cannot_hang(self, cwd: str, program: str, search_path: str) -> bool:
        """Cached briefly: a burst of equal tasks checks once."""
        key, now = (cwd, program, search_path), time.monotonic()
        if self._mounts.refresh() or len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        known = self._known.get(key)
        if known is None or now - known[0] >= _KNOWN_SECONDS:
            known = self._known[key] = (now, self._look(cwd, program, search_path))
        return known[1]

    def _look(self, cwd: str, program: str, search_path: str) -> bool:
        """The directory, each place where the program is looked for, and the program are all on this machine."""
        if "\0" in f"{cwd}{program}{search_path}" or (cwd and not cwd.startswith("/")):
            return True  # every call refuses it
        if not self._mounts.is_local(cwd or self._work_dir):
            return False
        for place in [""] if "/" in program else search_path.split(":"):
            path = f"{place}/{program}" if place else program
            if not path.startswith("/"):
                if not cwd:
                    continue  # in a new, empty directory of the node
                path = f"{cwd}/{path}"
            if not self._mounts.is_local(path):
                return False
            if os.access(path, os.X_OK):
                return self._mounts.is_local_program(path)
        return True
