"""Starts a task's process as another Unix user. Standard library only; runs in the keeper.

posix_spawn cannot change the user. So the keeper spawns a small program (launch_as.c), which changes the user, enters
the task's directory as that user and executes the task's program. Without a C compiler there is no such program: then
the keeper forks and does the same itself (`spawn_apart`), at three times the cost.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from dgpu.agent.spawn import DEFAULT_SIGNALS, Child

_SOURCE = Path(__file__).with_name("launch_as.c")
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


def program_path() -> Path:
    """Where compile_core.py puts the program made from the present source."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    return _SOURCE.parents[1] / "_native" / f"launch_as-{digest}"


def find_launcher() -> str:
    """Empty: it has not been compiled."""
    try:
        path = program_path()
    except OSError:
        return ""
    return str(path) if os.access(path, os.X_OK) else ""


def launch_as(
    launcher: str,
    account: Account,
    cwd: str,
    argv: list[str],
    env: dict[str, str],
    *,
    null: int,
    limits: tuple[int, int] | None,
    groups: list[str],
) -> Child:
    """`groups`: files that move a process into its control groups. Raises OSError and ValueError."""
    fds: list[int] = []
    try:
        output_read, output_write = os.pipe2(os.O_CLOEXEC)
        fds += [output_read, output_write]
        # The program writes at most once, and far less than the pipe holds: its end may be non-blocking, too.
        status_read, status_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        fds += [status_read, status_write]
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, output_write, 1),
            (os.POSIX_SPAWN_DUP2, output_write, 2),
            # A descriptor that is copied to itself stays open in the child.
            (os.POSIX_SPAWN_DUP2, status_write, status_write),
        ]
        pid = os.posix_spawn(
            launcher,
            argv,
            _with_order([status_write, *_order(account, cwd, env, limits, groups)], env),
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=DEFAULT_SIGNALS,
        )
        fds.remove(output_read)
        fds.remove(status_read)
    finally:
        for fd in fds:
            os.close(fd)
    os.set_blocking(output_read, False)
    return Child(pid, output_read, status_read)


def _order(
    account: Account, cwd: str, env: dict[str, str], limits: tuple[int, int] | None, groups: list[str]
) -> list[str | int]:
    """In the order of run() in launch_as.c."""
    words: list[str | int] = [os.getpid(), len(groups), *groups]
    words += [*(limits or (0, 0)), account.max_processes]
    words += [account.uid, account.gid, len(account.groups), *account.groups]
    words += [cwd, env.get("PATH", os.defpath)]
    return words


def _with_order(words: list[str | int], env: dict[str, str]) -> dict[str, str]:
    """The program takes the first entries, whatever their names are, and gives the others to the task."""
    order = {f"{_WORD}{number}": str(word) for number, word in enumerate(words)}
    if not order.keys().isdisjoint(env):
        raise ValueError(f"variables that begin with {_WORD} are reserved")
    return order | env  # the words stay in front
