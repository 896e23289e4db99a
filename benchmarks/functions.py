"""Calls of a function that does nothing: 10,000 with `map`, and one after the other. On 8 simulated GPUs.

Beside it, in the same run and with 8 processes each: Celery with Redis, Dask and Ray, where they are installed
(`pip install celery redis distributed ray`, and a redis-server). dgpu journals each call before it answers; Celery
with Redis, Dask and Ray keep calls in memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _cluster import ENVIRONMENT, free_port

from dgpu.entry.keepers import end_keepers

HERE = Path(__file__).parent
CALLS = 10_000
SINGLE = 200
PROCESSES = 8
WAIT_SECONDS = 120.0

Many = Callable[[int], float]  # calls to make; seconds that it took
One = Callable[[], object]


def run() -> Iterator[dict]:
    for name, system, aim in (
        ("dgpu", dgpu, 3_000),
        ("Celery", celery, None),
        ("Dask", dask, None),
        ("Ray", ray, None),
    ):
        missing = MISSING.get(name, lambda: "")()
        if missing:
            print(f"functions: {name} is not measured: {missing}", file=sys.stderr)
            continue
        with system() as (many, one):
            many(PROCESSES * 50)
            rate = CALLS / many(CALLS)
            delays = sorted(seconds_of(one) for _ in range(SINGLE))
        figure = {"figure": f"no-op functions, {name}", "value": round(rate), "unit": "calls/s"}
        yield {**figure, "aim": aim} if aim else figure
        figure = {
            "figure": f"one no-op function, {name}, p50",
            "value": round(delays[SINGLE // 2] * 1e3, 2),
            "unit": "ms",
        }
        yield {**figure, "aim": 10} if aim else figure


def seconds_of(one: One) -> float:
    begin = time.perf_counter()
    one()
    return time.perf_counter() - begin


@contextlib.contextmanager
def dgpu() -> Iterator[tuple[Many, One]]:
    folder = Path(tempfile.mkdtemp(prefix="dgpu-bench-"))
    env = {**ENVIRONMENT, "DGPU_DATA_DIR": str(folder / "state"), "HOME": str(folder)}
    command = [
        sys.executable,
        "-m",
        "dgpu",
        "up",
        "--http-port",
        "0",
        "--grpc-port",
        "0",
        "--fake",
        f"{PROCESSES}xV100",
    ]
    up = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert up.stdout is not None
        assert "dgpu is up at" in up.stdout.readline()
        before, os.environ["DGPU_DATA_DIR"] = os.environ.get("DGPU_DATA_DIR"), env["DGPU_DATA_DIR"]
        import _functions

        from dgpu.functions.session import connect

        connect()
        os.environ.pop("DGPU_DATA_DIR") if before is None else os.environ.update(DGPU_DATA_DIR=before)

        def many(number: int) -> float:
            begin = time.perf_counter()
            assert sum(1 for _ in _functions.nothing.map(range(number), progress=False)) == number
            return time.perf_counter() - begin

        yield many, lambda: _functions.nothing.submit(1).result()
    finally:
        subprocess.run(
            [sys.executable, "-m", "dgpu", "down", "--stop-tasks"], env=env, check=False, capture_output=True
        )
        up.terminate()
        up.communicate(timeout=60)
        end_keepers(folder / "state" / "agent")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def celery() -> Iterator[tuple[Many, One]]:
    port = free_port()
    os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{port}/0"
    started = [_quiet("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "")]
    try:
        from _functions import celery_app

        module = ("-m", "celery", "-A", "_functions", "worker", "-c", str(PROCESSES), "-l", "ERROR")
        started.append(_quiet(sys.executable, *module))
        task = celery_app().tasks["plain"]
        task.delay(1).get(timeout=WAIT_SECONDS)

        def many(number: int) -> float:
            from celery import group

            begin = time.perf_counter()
            assert len(group(task.s(each) for each in range(number))().get(timeout=WAIT_SECONDS)) == number
            return time.perf_counter() - begin

        yield many, lambda: task.delay(1).get(timeout=WAIT_SECONDS)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)


def _quiet(*command: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def dask() -> Iterator[tuple[Many, One]]:
    from _functions import plain
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def many(number: int) -> float:
            begin = time.perf_counter()
            assert len(client.gather(client.map(plain, range(number), pure=False))) == number
            return time.perf_counter() - begin

        yield many, lambda: client.submit(plain, 1, pure=False).result()


@contextlib.contextmanager
def ray() -> Iterator[tuple[Many, One]]:
    import ray as system
    from _functions import plain

    home, before = tempfile.mkdtemp(prefix="ray-bench-"), os.environ.get("HOME", "")
    os.environ["HOME"] = home  # it writes a token there
    try:
        system.init(
            num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1"
        )
        remote = system.remote(plain)

        def many(number: int) -> float:
            begin = time.perf_counter()
            assert len(system.get([remote.remote(each) for each in range(number)])) == number
            return time.perf_counter() - begin

        yield many, lambda: system.get(remote.remote(1))
    finally:
        system.shutdown()
        os.environ["HOME"] = before
        shutil.rmtree(home, ignore_errors=True)


def _needs(*modules: str, program: str = "") -> Callable[[], str]:
    def missing() -> str:
        absent = [name for name in modules if importlib.util.find_spec(name) is None]
        if absent:
            return f"not installed: {', '.join(absent)}"
        return f"there is no {program}" if program and shutil.which(program) is None else ""

    return missing


MISSING: dict[str, Callable[[], str]] = {
    "Celery": _needs("celery", "redis", program="redis-server"),
    "Dask": _needs("distributed"),
    "Ray": _needs("ray"),
}
