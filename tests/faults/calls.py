"""Functions that notice what must not happen: a call that runs twice at once, or GPU memory that is still used."""

from __future__ import annotations

import fcntl
import os
import pathlib
import time

import dgpu

_TICK_SECONDS = 0.02


@dgpu.task(timeout=300, retries=100)
def locked(folder: str, number: int, seconds: float) -> int:
    """Holds a lock for the call while it runs. The kernel releases it with the process, so a taken lock proves that the
    call runs elsewhere, unless that process is frozen: such a one must never make another step.
    """
    place = pathlib.Path(folder)
    run, current = f"{number} {os.getpid()} {time.monotonic_ns()}", place / f"{number}.current"
    with (place / f"{number}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = current.read_text() if current.exists() else ""
            if not _is_stopped(holder):
                _note(place, "violations", f"{run} overlaps with {holder or 'a run'}")
        current.write_text(run)
        _note(place, "runs", run)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(_TICK_SECONDS)
            if current.read_text() not in {run, ""}:
                _note(place, "violations", f"{run} goes on although {current.read_text()} replaced it")
                break
    return number


def _is_stopped(run: str) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{run.split()[1]}/stat").read_text()
    except (OSError, IndexError):
        return False
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _note(folder: pathlib.Path, name: str, line: str) -> None:
    with (folder / f"{name}.log").open("a") as log:
        log.write(f"{line}\n")


@dgpu.task(timeout=300)
def fills(folder: str, seconds: float) -> tuple[int, bool]:
    """Uses memory of its GPU, and returns while the worker keeps it: its pid, and whether other memory was used."""
    gpu = pathlib.Path(folder) / os.environ["CUDA_VISIBLE_DEVICES"]
    is_used = gpu.exists() and gpu.read_text() != str(os.getpid())
    fresh = gpu.with_suffix(".new")
    fresh.write_text(str(os.getpid()))
    fresh.replace(gpu)
    time.sleep(seconds)
    return os.getpid(), is_used
