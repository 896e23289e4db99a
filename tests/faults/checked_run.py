"""One run of a task in the storm: `checked_run.py DIRECTORY SECONDS CODE`.

While it lives, the run holds a lock per task (and rank) and per GPU. The kernel releases them with the process, so a
lock that is taken proves an overlap. The one legal exception is a frozen run: its node lost contact, its lease was
given away, and it must never make another step.
"""
# Importing pathlib would double the start-up time of every run.
# ruff: noqa: PTH105, PTH123

import fcntl
import os
import sys
import time

_TICK_SECONDS = 0.02


def main() -> int:
    directory, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    task = f"{os.environ['DGPU_TASK_ID']}.{os.environ.get('NODE_RANK', '0')}"
    run = f"{task} {os.environ['DGPU_ATTEMPT']} {os.environ['DGPU_NODE']} {os.getpid()}"
    print(f"run {run}", flush=True)
    if not os.environ.get("STORM_SHARED"):
        for gpu in filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
            _lock(directory, f"gpu-{gpu}", run, may_be_frozen=False)
    _lock(directory, task, run, may_be_frozen=True)
    current = f"{directory}/{task}.current"
    _write(current, run)
    _append(f"{directory}/runs.log", f"begin {run}")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(_TICK_SECONDS)
        newest = _read(current)
        if newest != run:
            _append(f"{directory}/violations.log", f"{run} goes on although {newest} replaced it")
            return 99
    _append(f"{directory}/runs.log", f"end {run} {code}")
    return code


def _lock(directory: str, name: str, run: str, *, may_be_frozen: bool) -> None:
    """The descriptor stays open until the process ends, and the lock with it."""
    descriptor = os.open(f"{directory}/{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode()
        if not (may_be_frozen and _is_stopped(holder)):
            _append(f"{directory}/violations.log", f"{run} overlaps with {holder or 'a run'} at {name}")
        return
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, run.encode(), 0)


def _is_stopped(run: str) -> bool:
    stat = _read(f"/proc/{run.rpartition(' ')[2]}/stat")
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _write(path: str, text: str) -> None:
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())  # one write: lines of several processes never mix
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
