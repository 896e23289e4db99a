"""The SDK against real worker processes. Between them is a small server in place of scheduler and agent."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import pytest

import dgpu
from dgpu.functions import mapping
from dgpu.functions.code import CodeNotFoundError
from dgpu.functions.errors import CallCancelled, RemoteError, ResultExpired
from dgpu.functions.session import default_session
from dgpu.functions.values import CannotSendError
from dgpu.wire.call_answers import CallResult
from function_server import FunctionServer, function_server
from worker_process import FUNCTIONS

sys.path.insert(0, str(FUNCTIONS))
import with_models


@pytest.fixture(scope="module")
def server():
    with function_server() as started:
        dgpu.connect(started.url)
        yield started


def test_a_function_runs_here_when_called_and_there_when_submitted(server: FunctionServer) -> None:
    assert with_models.square(3) == 9
    assert with_models.square.submit(3, power=3).result() == 27
    assert server.tasks[-1]["entrypoint"] == "with_models:square"
    assert pathlib.Path(server.tasks[-1]["python"]).samefile(sys.executable)
    assert server.tasks[-1]["python_path"] == [str(FUNCTIONS)]


def test_a_model_is_loaded_once_and_given_first(server: FunctionServer) -> None:
    futures = [with_models.greet.submit(name) for name in ("a", "b")]
    assert [future.result() for future in futures] == ["hello a", "hello b"]
    assert with_models.greet("c") == "hello c", "and here, too"
    assert server.tasks[-1]["model_name"] == "greeter"
    assert server.tasks[-1]["timeout_seconds"] == 60


def test_a_remote_exception_has_its_type_and_its_traceback(server: FunctionServer) -> None:
    future = with_models.fails_at.submit(1, bad=1)
    with pytest.raises(ValueError, match="1 is bad") as raised:
        future.result()
    assert isinstance(raised.value, RemoteError)
    assert raised.value.type_name == "ValueError"
    assert "with_models.py" in raised.value.traceback
    assert future.done()
    assert future.exception() is raised.value
    assert isinstance(dgpu.Future(future.task_id).exception(), ValueError), "it is found again by its id"


def test_a_model_that_cannot_be_loaded_is_told(server: FunctionServer) -> None:
    with pytest.raises(RuntimeError, match="no weights"):
        with_models.use_broken.submit().result()
    with pytest.raises(
        RemoteError, match=r"no @dgpu.model\('undeclared'\) was imported; declared: broken, greeter"
    ):
        with_models.use_undeclared.submit().result()


def test_large_arguments_and_results_go_by_reference(server: FunctionServer) -> None:
    import plain

    length, long_bytes = dgpu.task(plain.length), dgpu.task(plain.long_bytes)
    assert length.submit(b"x" * 300_000).result() == 300_000
    assert "args_ref" in server.tasks[-1]
    assert long_bytes.submit(300_000).result() == b"y" * 300_000
    assert list(length.map([b"x" * 300_000, b"y"])) == [300_000, 1]


def test_map_keeps_the_order_of_its_input(server: FunctionServer) -> None:
    assert list(with_models.square.map(range(300))) == [x * x for x in range(300)]
    assert list(with_models.square.map(range(3), [1, 2, 3])) == [0, 1, 8]
    assert sorted(with_models.square.map(range(30), ordered=False, kwargs={"power": 1})) == list(range(30))


def test_map_reads_no_more_input_than_it_may_have_in_flight(server: FunctionServer) -> None:
    read = []

    def items():
        for number in range(1_000):
            read.append(number)
            yield number

    results = with_models.square.map(items(), in_flight=20)
    assert next(results) == 0
    assert len(read) <= 40
    results.close()


def test_a_failure_in_map_is_raised_in_its_place_and_cancels_the_rest(server: FunctionServer) -> None:
    results = with_models.fails_at.map(range(40), kwargs={"bad": 2})
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2 is bad"):
        next(results)
    kept = list(with_models.fails_at.map(range(4), kwargs={"bad": 2}, return_exceptions=True))
    assert [kept[0], kept[1], type(kept[2]).__name__, kept[3]] == [0, 1, "ValueError", 3]


async def test_the_async_forms_do_the_same(server: FunctionServer) -> None:
    future = await with_models.square.submit_async(5)
    assert await future == 25
    assert await asyncio.gather(*[await with_models.square.submit_async(n) for n in range(3)]) == [0, 1, 4]
    assert [value async for value in with_models.square.amap(range(50))] == [n * n for n in range(50)]
    with pytest.raises(ValueError, match="1 is bad"):
        await (await with_models.fails_at.submit_async(1, bad=1))


def test_a_result_that_is_not_kept_is_no_value(server: FunctionServer) -> None:
    """A `None` that the function never returned would be taken for its result."""
    server.ended["task-9000"] = {"task_id": "task-9000", "status": "success", "reason": "result_expired"}
    for future in (dgpu.Future("task-9000"), *dgpu.as_completed([dgpu.Future("task-9000")])):
        with pytest.raises(ResultExpired, match="its result is not kept any more"):
            future.result()
    outcome = mapping._outcome(
        CallResult(task_id="task-9000", status="success", reason="result_expired"), None
    )
    assert isinstance(outcome, ResultExpired)


async def test_a_large_result_that_is_not_kept_is_raised_in_its_place(server: FunctionServer) -> None:
    answer = {"task_id": "task-9001", "status": "success", "ref": "a" * 64}
    server.ended["task-9001"] = answer
    with pytest.raises(ResultExpired):
        dgpu.Future("task-9001").result()
    with pytest.raises(ResultExpired):
        await dgpu.Future("task-9001")
    ended, client = CallResult(**answer), default_session().client
    assert isinstance(mapping._outcome(ended, mapping._content(client, ended)), ResultExpired)


def test_as_completed_gives_each_future_once(server: FunctionServer) -> None:
    futures = [with_models.square.submit(number) for number in range(5)]
    assert {future.result() for future in dgpu.as_completed(futures)} == {0, 1, 4, 9, 16}


def test_a_call_that_runs_can_be_waited_for_and_cancelled(
    server: FunctionServer, tmp_path: pathlib.Path
) -> None:
    import plain

    flag = tmp_path / "flag"
    future = dgpu.task(plain.waits_for).submit(str(flag))
    assert not future.done()
    with pytest.raises(TimeoutError, match=r"has not ended after 0.01 s; it continues"):
        future.result(timeout=0.01)
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        future.result(timeout=0)
    with pytest.raises(TimeoutError, match="1 calls have not ended after 0 s"):
        list(dgpu.as_completed([future], timeout=0))
    assert future.cancel()
    assert server.cancelled[-1] == future.task_id
    flag.touch()
    assert future.result() == "seen"
    assert not future.cancel()
    assert dgpu.Future(future.task_id).result(timeout=0) == "seen", "asked at least once"
    assert [each.task_id for each in dgpu.as_completed([dgpu.Future(future.task_id)], 0)] == [future.task_id]


def test_as_completed_does_not_wait_for_the_first_ones_if_there_are_many(
    server: FunctionServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import plain

    monkeypatch.setattr("dgpu.functions.futures._MAX_ASKED", 1)
    flag = tmp_path / "flag"
    slow = dgpu.task(env={"APART": "1"})(plain.waits_for).submit(str(flag))
    fast = with_models.square.submit(3)
    ended = dgpu.as_completed([slow, fast], timeout=60)
    assert next(ended) is fast
    flag.touch()
    assert next(ended) is slow


async def test_a_cancelled_map_cancels_also_the_calls_that_are_being_submitted(
    server: FunctionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, submit = threading.Event(), threading.Event(), mapping._submit

    def slow_submit(*given):
        begun.set()
        may_end.wait()
        return submit(*given)

    monkeypatch.setattr(mapping, "_submit", slow_submit)

    async def run() -> None:
        async for _ in with_models.square.amap([1, 2]):
            pass

    before = len(server.tasks)
    running = asyncio.ensure_future(run())
    await asyncio.to_thread(begun.wait)
    running.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    submitted = [f"task-{number + 1}" for number in range(before, len(server.tasks))]
    assert len(submitted) == 2
    assert server.cancelled[-2:] == submitted


def test_a_forked_child_has_its_own_connections(server: FunctionServer) -> None:
    """On a shared one, each would read answers to the requests of the other."""
    client = default_session().client
    with_models.square.submit(2).result()
    parent = {id(each) for each in client._connections.values()}
    assert parent
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, b"%d" % len(parent & {id(each) for each in client._connections.values()}))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"0"
    assert {id(each) for each in client._connections.values()} == parent
    os.close(reader)
    os.close(writer)


def test_what_cannot_be_sent_is_named_before_anything_is_submitted(server: FunctionServer) -> None:
    before = len(server.tasks)
    with pytest.raises(CannotSendError, match="object is neither msgpack nor JSON"):
        with_models.square.submit(object())
    with pytest.raises(CodeNotFoundError, match="is a lambda"):
        dgpu.task(lambda: 1).submit()
    with pytest.raises(TypeError, match="unknown option 'gpu'; expected one of constraints, cpus, env"):
        dgpu.task(gpu=1)(len)
    with pytest.raises(ValueError, match="gpu_memory is '16X'"):
        with_models.square.with_options(gpu_memory="16X").submit(1)
    assert len(server.tasks) == before


def test_another_host_needs_an_upload() -> None:
    from dgpu.functions.code import described
    from dgpu.functions.session import Session

    with pytest.raises(CodeNotFoundError, match=r"the scheduler is on another one. Give upload=True"):
        described(Session("http://192.0.2.1:8080"), with_models.square)


def test_cancelled_errors_have_their_own_type() -> None:
    from dgpu.functions.errors import error_of
    from dgpu.wire.call_answers import CallResult

    assert isinstance(error_of(CallResult(task_id="task-1", status="cancelled")), CallCancelled)
    raised = error_of(
        CallResult(task_id="task-1", status="failed", error="raised an exception: KeyError: 'x'")
    )
    assert (isinstance(raised, KeyError), raised.type_name, raised.message) == (True, "KeyError", "'x'")
    lost = error_of(
        CallResult(task_id="task-1", status="failed", reason="worker_lost", error="the worker ended: 137")
    )
    assert (type(lost), str(lost)) == (RemoteError, "the worker ended: 137 (task-1)")


SCRIPT = """
import dgpu

@dgpu.task
def double(x):
    return helper(x)

def helper(x):
    return 2 * x

if __name__ == "__main__":
    print(list(double.map([1, 2, 3])))
"""
PROMPT = """
import dgpu
import math as m
from os.path import join
from random import randint
from time import sleep
from typing import Optional
FACTOR = 3
handle = object()

@dgpu.model("tiny")
def load():
    return {"weight": FACTOR}

def helper(x: Optional[int]):
    sleep(0)
    handle = m.floor(x) * randint(1, 1)  # not that of the notebook
    return [handle for x in "a"][0]

@dgpu.task(model="tiny", preload=True)
def triple(model, x):
    return [model["weight"] * helper(x), join("a", "b")]

lock = object()

@dgpu.task
def bad():
    return lock

print(triple.submit(2).result())
import glob, tempfile
print(glob.glob(tempfile.gettempdir() + "/dgpu-notebook-*"))
try:
    bad.submit()
except RuntimeError as error:
    print(error)
"""


def python(server: FunctionServer, *arguments: str, cwd: pathlib.Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "DGPU_SERVER": server.url, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_functions_of_a_script_and_of_a_module(server: FunctionServer, tmp_path: pathlib.Path) -> None:
    (tmp_path / "my-script.py").write_text(SCRIPT)
    assert python(server, "my-script.py", cwd=tmp_path) == "[2, 4, 6]\n"
    assert server.tasks[-1]["entrypoint"] == "my-script:double"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text(SCRIPT)
    assert python(server, "-m", "package.inner", cwd=tmp_path) == "[2, 4, 6]\n"
    assert server.tasks[-1]["entrypoint"] == "package.inner:double"
    assert server.tasks[-1]["python_path"] == [str(tmp_path)]


def test_a_script_without_its_guard_is_told(server: FunctionServer, tmp_path: pathlib.Path) -> None:
    (tmp_path / "bare.py").write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    with pytest.raises(AssertionError, match='put it under `if __name__ == "__main__":`'):
        python(server, "bare.py", cwd=tmp_path)


def test_functions_of_a_notebook_are_sent_as_text(server: FunctionServer, tmp_path: pathlib.Path) -> None:
    """As IPython does it: the text of cells is known to linecache, and there is no file."""
    cell = textwrap.dedent(
        """
        import linecache, sys
        text = open(sys.argv[1]).read()
        linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
        del __file__
        exec(compile(text, "<cell>", "exec"))
        """
    )
    (tmp_path / "cell.txt").write_text(PROMPT)
    (tmp_path / "kernel.py").write_text(cell)
    (tmp_path / "tmp").mkdir()
    printed = python(server, "kernel.py", "cell.txt", cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    first, left, second = printed.splitlines()
    assert (first, left) == ("[6, 'a/b']", "[]")
    assert second.startswith("the function uses 'lock' of the notebook, a object, which cannot be sent")
