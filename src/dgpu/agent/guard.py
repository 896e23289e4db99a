"""The keeper's parent. When the keeper dies, its tasks become children of the guard, which ends them. Standard library
only.

Both hold a lock on the node's directory. When the next keeper gets the lock, no task of the last keeper runs any more.

The guard also replaces a keeper that hangs. If the keeper does not freeze the tasks shortly after the end of their
lease, the guard ends the tasks and the keeper: by then the scheduler may place the tasks on another node.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from dgpu.agent.containers.kept import remove_containers
from dgpu.agent.corral import destroy
from dgpu.agent.fences import destroy_v1
from dgpu.agent.keeper import Keeper
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.lifeline import LOOK_SECONDS, LeaseGuard, Lifeline
from dgpu.agent.scribe import be_scribe
from dgpu.agent.store import FILE_NAME, LeaseLog, read_leases
from dgpu.agent.terminals import be_terminals
from dgpu.agent.tree import Survey, send
from dgpu.file_limit import lower_soft_limit

LOCK_WAIT_SECONDS = 60
_PR_SET_CHILD_SUBREAPER = 36


def main(settings_json: str) -> int:
    """Returns in the starting process: 0 when the keeper listens, otherwise 1 with a line on stderr."""
    settings = KeeperSettings(**json.loads(settings_json))
    lower_soft_limit(settings.soft_files)  # the agent raised its own limit; tasks get the original one
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        _be_guard(settings, tell)
    os.close(tell)
    answer = b""
    while piece := os.read(ready, 4096):
        answer += piece
    if answer == b"ready":
        return 0
    sys.stderr.write((answer.decode(errors="replace") or "the keeper ended before it was ready") + "\n")
    return 1


def _be_guard(settings: KeeperSettings, tell: int) -> None:
    os.setsid()
    _become_subreaper()
    directory = Path(settings.directory)
    _detach_output(directory / "keeper.log")
    try:
        lock = _lock(directory / "keeper.lock")
        end_predecessor(directory)
        log = LeaseLog(directory / FILE_NAME)
    except OSError as error:
        os.write(tell, f"keeper: {error.strerror}: {directory}".encode())
        os._exit(1)
    lifeline = Lifeline()
    said, say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    ours, theirs = socket.socketpair()
    scribe = os.fork()
    if scribe == 0:
        os.close(tell)
        ours.close()
        _speak_into(say)
        be_scribe(settings, log, theirs)
    theirs.close()
    log.close()
    to_terminals, of_terminals = socket.socketpair()
    if os.fork() == 0:
        os.close(tell)
        ours.close()
        to_terminals.close()
        _speak_into(say)
        be_terminals(settings, of_terminals)
    of_terminals.close()
    keeper = os.fork()
    if keeper == 0:
        _speak_into(say)
        _be_keeper(settings, tell, known=log.live, scribe=ours, terminals=to_terminals, lifeline=lifeline)
    os.close(tell)
    os.close(say)
    ours.close()
    to_terminals.close()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: _pass_on(keeper, got))
    why = _wait_for(keeper, scribe, lifeline)
    end_all_descendants()
    # From here on the disk may be touched: no task is left that depends on this process.
    with contextlib.suppress(OSError):
        os.write(2, why.encode() + os.read(said, 65_536))
    end_predecessor(directory)
    os.close(lock)
    os._exit(0)


def _be_keeper(settings: KeeperSettings, tell: int, **parts: Any) -> None:
    code = 1
    try:
        _become_subreaper()
        keeper = Keeper(settings, **parts)
        os.write(tell, b"ready")
        os.close(tell)
        tell = -1  # its number may be reused for a task's pipe: nothing more may be written there
        keeper.run()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last line of the process: say it, then end
        with contextlib.suppress(OSError):
            os.write(tell, f"keeper: {error}".encode())
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        os._exit(code)


def end_all_descendants() -> None:
    """Kills until no child is left. It waits for a process that cannot die (blocked on a broken disk)."""
    me = os.getpid()
    while True:
        for pid, proc in Survey().with_descendants([me]).items():
            if pid != me and not proc.dead:
                send(proc, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def end_predecessor(directory: Path) -> None:
    """Ends the remains of a keeper whose guard was killed too: its groups, processes with its mark, its containers."""
    try:
        left = json.loads((directory / "keeper.json").read_text())
    except (OSError, ValueError):
        return
    destroy(left.get("cgroup", ""))
    keeper_id = left.get("id", "")
    for _ in range(200):
        if not keeper_id:
            break
        survey = Survey()
        found = [survey.procs[pid] for pid in survey.marked(keeper_id) if not survey.procs[pid].dead]
        if not found:
            break
        for proc in found:
            send(proc, signal.SIGKILL)
        time.sleep(0.02)
    destroy_v1(left.get("groups", []))
    engines = {record.get("engine", "") for record in read_leases(directory).values() if "end" not in record}
    while keeper_id and not remove_containers(engines - {""}, keeper_id):
        time.sleep(1)  # no other keeper may start until it is certain that no container of this one runs
    with contextlib.suppress(OSError):
        (directory / "keeper.json").unlink()


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def _detach_output(log: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out = os.open(log, flags, 0o600)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


def _speak_into(pipe: int) -> None:
    """The guard writes it to the log at the end: neither the keeper nor the scribe may block on a log line."""
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, "another keeper holds the directory") from error
            time.sleep(0.01)
        else:
            return fd


def _pass_on(keeper: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, number)


def _wait_for(keeper: int, scribe: int, lifeline: Lifeline) -> str:
    """Waits until one of the two has ended, or the keeper has not enforced a task lease: then the guard must end its
    tasks.

    Returns a line for the log, or nothing. It writes nothing itself, because the disk may hang.
    """
    guard = LeaseGuard()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ""
        if pid == keeper:
            return ""
        if pid == scribe:
            return f"guard: scribe {scribe} has ended; ending the keeper and its tasks\n"
        if pid:
            continue
        if guard.look(lifeline.enforce_by_ms, boot_ms()):
            return f"guard: keeper {keeper} hangs and did not enforce the task lease; ending its tasks\n"
        left_seconds = (lifeline.enforce_by_ms - boot_ms()) / 1_000 if lifeline.enforce_by_ms else 1.0
        signal.sigtimedwait({signal.SIGCHLD}, min(1.0, max(LOOK_SECONDS, left_seconds)))
