"""Starts a task's process as another Unix user. Standard library only; runs in the keeper.

posix_spawn cannot change the user. So the keeper spawns a small program (launch_as.c), which changes the user, enters
the task's directory as that user and executes the task's program. Without a C compiler there is no such program: then
the keeper forks and does the same itself (`spawn_apart`), at three times the cost.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from dgpu.agent.fences import Groups
from dgpu.agent.native import find_native
from dgpu.agent.spawn import DEFAULT_SIGNALS, Child, Ends, output_pipe, stream_actions
from dgpu.agent.spawn_into import SpawnInto

_WORD = "DGPU_LAUNCH_"


class Account(NamedTuple):
    """The Unix identity of a task."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # supplementary
    max_processes: int = 0  # of this user on the machine; 0: no limit


def account_of(order: dict[str, Any]) -> Account | None:
    """None: the task runs as the agent's own user."""
    given = order.get("account")
    return Account(given[0], given[1], tuple(given[2]), given[3]) if given else None


class Launcher:
    """`usable` is False if launch_as.c has not been compiled."""

    def __init__(self) -> None:
        self._program = find_native("launch_as.c")
        self._into = SpawnInto()

    @property
    def usable(self) -> bool:
        return bool(self._program)

    def launch(
        self,
        account: Account,
        cwd: str,
        argv: list[str],
        env: dict[str, str],
        *,
        null: int,
        limits: tuple[int, int] | None,
        groups: Groups,
        ends: Ends | None = None,
    ) -> Child:
        """Raises OSError and ValueError."""
        with output_pipe(null, ends) as (read_ends, own):
            # The program writes at most once, and far less than the pipe holds: its end may be non-blocking, too.
            status_read, status_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                order = [str(status_write), str(os.getpid())]
                about = _about(account, cwd, env, limits)
                pid = None
                if groups.into >= 0 and ends is None:
                    variables = _with_order([*order, *_entering(groups.entries[1:]), *about], env)
                    child_fds = (null, own.output, own.errors, status_write)
                    pid = self._into.spawn(groups.into, self._program, argv, variables, child_fds)
                if pid is None:
                    variables = _with_order([*order, *_entering(groups.entries), *about], env)
                    pid = self._spawn(argv, variables, own, status_write)
            except BaseException:
                os.close(status_read)
                raise
            finally:
                os.close(status_write)
            return Child(pid, read_ends[0], status_read, read_ends[1])

    def _spawn(self, argv: list[str], env: dict[str, str], ends: Ends, status: int) -> int:
        # A descriptor that is copied to itself stays open in the child.
        actions = [*stream_actions(ends), (os.POSIX_SPAWN_DUP2, status, status)]
        return os.posix_spawn(
            self._program,
            argv,
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=DEFAULT_SIGNALS,
        )


def _entering(entries: list[str]) -> list[str]:
    return [str(len(entries)), *entries]


def _about(account: Account, cwd: str, env: dict[str, str], limits: tuple[int, int] | None) -> list[str]:
    """In the order of run() in launch_as.c, after the groups."""
    words = [*(limits or (0, 0)), account.max_processes]
    words += [account.uid, account.gid, len(account.groups), *account.groups]
    return [*map(str, words), cwd, env.get("PATH", os.defpath)]


def _with_order(words: list[str], env: dict[str, str]) -> dict[str, str]:
    """The program takes the first entries, whatever their names are, and gives the others to the task."""
    order = {f"{_WORD}{number}": word for number, word in enumerate(words)}
    if not order.keys().isdisjoint(env):
        raise ValueError(f"variables that begin with {_WORD} are reserved")
    return order | env  # the words stay in front
