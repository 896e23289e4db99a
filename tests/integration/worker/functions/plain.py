"""Functions as users write them, good and bad."""

import asyncio
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time

from dgpu.worker.context import Cancelled, cancelled, progress

kept = []


def nothing():
    return None


def add(a, b=0):
    return a + b


async def add_later(a, b):
    await asyncio.sleep(0)
    return a + b


def task_id():
    return [os.environ["DGPU_TASK_ID"], os.environ["DGPU_ATTEMPT"]]


def fails(text):
    raise ValueError(text)


def exits(code):
    sys.exit(code)


def prints():
    print("by Python")
    print("to stderr", file=sys.stderr)
    os.write(1, b"by C code\n")
    subprocess.run(["echo", "by a child"], check=True)


def prints_much(megabytes):
    line = b"x" * 1023 + b"\n"
    for _ in range(megabytes * 1024):
        os.write(1, line)
    return megabytes


def long_bytes(size):
    return b"y" * size


def length(data):
    return len(data)


def not_sendable():
    return {"lock": object()}


def contains_itself():
    value = []
    value.append(value)
    return value


def closes_output():
    os.close(1)
    sys.stderr.close()


def replaces_output():
    sys.stdout = None


def forks():
    if os.fork() == 0:
        return "child"
    return "parent"


def blocks_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    return os.getpid()


def leaks(megabytes):
    kept.append(bytearray(megabytes << 20))
    return len(kept)


def waits_for(path, text=""):
    """Until the file exists or the call is cancelled; reports on the way."""
    while not pathlib.Path(path).exists():
        if cancelled():
            raise Cancelled
        progress(0.4, text)
        time.sleep(0.005)
    return "seen"


def waits_without_looking(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.005)
    return "seen"


class OutOfMemoryError(RuntimeError):
    """Named as the one of PyTorch."""


def no_gpu_memory():
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def breaks_the_gpu():
    raise RuntimeError("CUDA error: device-side assert triggered")


def holds(folder, name):
    """Until the gate is open. A second run of the same name at the same time leaves a note."""
    with (pathlib.Path(folder) / name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (pathlib.Path(folder) / f"{name}.twice").touch()
            raise
        while not (pathlib.Path(folder) / "gate").exists():
            time.sleep(0.005)
    return name
