"""Functions in warm workers, through the SDK: a real scheduler, a real agent, real worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from e2e.conftest import Site, eventually

pytestmark = pytest.mark.slow

MODULE = """
import os, pathlib, sys, time
import dgpu

@dgpu.task(timeout=60, max_workers=1)
def square(x):
    return x * x

@dgpu.task(timeout=60, max_workers=1)
def pid(wait_for=None):
    first = os.environ["DGPU_ATTEMPT"] == "1"
    if wait_for and first:
        pathlib.Path(wait_for).write_text(str(os.getpid()))
        time.sleep(60)
    return os.getpid()

@dgpu.task(timeout=60, max_workers=1)
def fails(kind):
    print("before it fails")
    if kind == "raises":
        raise ValueError("no such luck")
    return object()

@dgpu.task(timeout=60, max_workers=1)
def further(x):
    return square.submit(x).task_id

@dgpu.task(timeout=60, max_workers=1)
def large(size):
    return b"x" * size
"""


@pytest.fixture(scope="module")
def place():
    place = Site()
    (place.home / "job.py").write_text(MODULE)
    place.up("--fake", "1xV100")
    yield place
    place.close()


def python(place, code, timeout=90):
    """Runs code as a user's program beside job.py."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, job, dgpu\n{code}"],
        env={**place.env, "PYTHONPATH": str(place.home)},
        cwd=place.home,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def workers(place):
    return place.json("workers")["workers"]


def test_calls_of_one_app_share_a_warm_worker(place) -> None:
    one = python(place, "print(json.dumps([job.pid.submit().result() for _ in range(3)]))")
    assert len(set(one)) == 1
    assert python(place, "print(json.dumps(list(job.square.map(range(50)))))") == [x * x for x in range(50)]
    assert len(workers(place)) == 1


def test_the_command_line_uses_the_workers_of_the_sdk(place) -> None:
    python(place, "print(job.square.submit(2).result())")
    before = [each["task_id"] for each in workers(place)]
    call = ("call", "job:square", "7", "--json-args", "--wait", "--max-workers", "1")
    assert place.good(*call, env={"PYTHONPATH": str(place.home)}, cwd=place.home).out.strip() == "49"
    assert [each["task_id"] for each in workers(place)] == before


def test_a_function_and_a_task_find_their_scheduler(place) -> None:
    inner = python(place, "print(json.dumps(job.further.submit(8).result()))")
    assert place.good("result", "--wait", inner).out.strip() == "64"
    asked = place.good(
        "run", "-e", "DGPU_DATA_DIR=/none", "--", sys.executable, "-m", "dgpu", "whoami", "-o", "name"
    )
    assert asked.out.strip() == place.good("whoami", "-o", "name").out.strip()
    assert inner in place.good("ps", "-a", "--mine", "-o", "name").out.split()


def test_what_goes_wrong_is_told_and_the_next_call_runs(place) -> None:
    code = """
def told(kind):
    future = job.fails.submit(kind)
    try:
        future.result()
    except Exception as error:
        return [future.task_id, type(error).__name__ + ": " + str(error)]
print(json.dumps([told("raises"), told("cannot be encoded"), job.square.submit(3).result()]))
"""
    (raised_id, raised), (_, encoded), after = python(place, code)
    assert "no such luck" in raised
    assert "object" in encoded
    assert after == 9
    assert place.good("logs", raised_id).out == "before it fails\n"
    assert place.task(raised_id)["reason"] == "raised"


def test_a_large_result_comes_back(place) -> None:
    assert python(place, "print(len(job.large.submit(1_000_000).result()))") == 1_000_000


def test_a_call_survives_the_kill_of_its_worker(place) -> None:
    mark = place.home / "running"
    code = f"print(json.dumps(job.pid.submit({str(mark)!r}).task_id))"
    task_id = python(place, code)
    eventually(lambda: mark.exists() and mark.read_text(), "the call to run")
    killed = int(mark.read_text())
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: place.task(task_id)["status"] == "success", "the second attempt")
    assert place.task(task_id)["retries"] == 1


def test_an_idle_worker_gives_way_to_a_task(place) -> None:
    python(place, "print(job.square.submit(2).result())")
    (worker,) = workers(place)
    task_id = place.submit("--", "true")
    eventually(lambda: place.task(task_id)["status"] == "success", "the task to run")
    ended = place.task(worker["task_id"])
    assert (ended["status"], ended["reason"]) == ("success", "gave_way")
    assert python(place, "print(job.square.submit(4).result())") == 16


def test_results_outlive_a_restart_of_the_scheduler(place) -> None:
    task_id = python(place, "f = job.square.submit(5); f.result(); print(json.dumps(f.task_id))")
    place.interrupt()
    place.up("--fake", "1xV100")
    eventually(lambda: place.dgpu("result", task_id).out.strip() == "25", "the result")
    assert python(place, "print(job.square.submit(6).result())") == 36
