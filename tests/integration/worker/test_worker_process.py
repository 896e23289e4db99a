"""A real worker process, driven over its socket as an agent does."""

from __future__ import annotations

import os
import pathlib

import msgspec
import pytest

from dgpu.worker import frames
from worker_process import AgentEnd, WorkerProcess, worker_process


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with worker_process(tmp_path_factory.mktemp("worker")) as started:
        yield started


@pytest.fixture
def agent(worker: WorkerProcess):
    end = worker.connect()
    yield end
    assert end.value("plain:add", 20, 22) == 42, "the next function runs"
    end.send(frames.Taken(leases=tuple(frame.lease for frame in end.seen if isinstance(frame, frames.Done))))
    end.close()


def test_a_function_gets_its_arguments_and_returns_its_value(agent: AgentEnd) -> None:
    assert agent.value("plain:add", 1, 2) == 3
    assert agent.value("plain:add_later", 1, 2) == 3
    assert agent.value("os.path:basename", "a/b") == "b"


def test_a_call_knows_its_task_and_attempt(agent: AgentEnd) -> None:
    agent.call("plain:task_id", lease=7, attempt=3)
    assert msgspec.msgpack.decode(agent.done(7).result) == ["task-7", "3"]


def test_an_exception_comes_back_with_its_traceback(agent: AgentEnd) -> None:
    done = agent.run("plain:fails", "wrong")
    assert (done.outcome, done.error) == ("raised", "ValueError: wrong")
    assert "raise ValueError(text)" in done.traceback
    assert "invoke.py" not in done.traceback


def test_sys_exit_ends_the_call_alone(agent: AgentEnd) -> None:
    assert agent.run("plain:exits", 3).error == "SystemExit: the function called sys.exit(3)"


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("no_such_module:f", "no module 'no_such_module'"),
        ("plain.deeper:f", "no module 'plain.deeper'"),
        ("plain:no_such_function", "plain.py has no 'no_such_function'; it has"),
        ("plain", "expected package.module:function"),
    ],
)
def test_a_missing_function_is_told_with_the_places_searched(
    agent: AgentEnd, entrypoint: str, words: str
) -> None:
    done = agent.run(entrypoint)
    assert done.outcome == "raised"
    assert words in done.error
    searched = done.error.partition("searched: ")[2].partition(". Give")[0].split(", ")
    assert len(set(searched)) == len(searched)
    assert os.path.dirname(os.__file__) not in searched, "Python's own directories help nobody"  # noqa: PTH120


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("plain:not_sendable", "object is neither msgpack nor JSON"),
        ("plain:contains_itself", "contains itself"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(agent: AgentEnd, entrypoint: str, words: str) -> None:
    done = agent.run(entrypoint)
    assert done.outcome == "cannot_encode"
    assert words in done.error


def test_large_arguments_and_results_are_files(agent: AgentEnd, worker: WorkerProcess) -> None:
    args = worker.path.parent / "args-1"
    args.write_bytes(msgspec.msgpack.encode([[b"z" * 300_000], {}]))
    agent.send(frames.Call(lease=31, entrypoint="plain:length", args_file="args-1"))
    assert msgspec.msgpack.decode(agent.done(31).result) == 300_000
    assert not args.exists()
    done = agent.run("plain:long_bytes", 300_000)
    assert (done.result, done.size) == (b"", 300_005)
    kept = worker.path.parent / done.result_file
    assert msgspec.msgpack.decode(kept.read_bytes()) == b"y" * 300_000


def test_output_of_python_c_code_and_children_belongs_to_the_call(agent: AgentEnd) -> None:
    agent.call("plain:prints", lease=41)
    done = agent.done(41)
    assert agent.printed(41, 1) == b"by Python\nby C code\nby a child\n"
    assert agent.printed(41, 2) == b"to stderr\n"
    assert done.output_bytes == 41


@pytest.mark.parametrize("entrypoint", ["plain:closes_output", "plain:replaces_output", "plain:forks"])
def test_a_function_cannot_take_the_output_of_the_next_one(agent: AgentEnd, entrypoint: str) -> None:
    assert agent.run(entrypoint).outcome == "returned"
    lease = agent.run("plain:prints").lease
    assert agent.printed(lease, 1) == b"by Python\nby C code\nby a child\n"
    assert agent.printed(lease, 2) == b"to stderr\n"


def test_a_forked_child_does_not_answer(agent: AgentEnd) -> None:
    agent.call("plain:forks", lease=61)
    assert msgspec.msgpack.decode(agent.done(61).result) == "parent"
    agent.value("plain:nothing")
    assert [frame for frame in agent.seen if isinstance(frame, frames.Done) and frame.lease == 61] == [
        agent.done(61)
    ]


def test_a_function_that_prints_a_lot_is_slowed_down_and_nothing_is_lost(agent: AgentEnd) -> None:
    agent.call("plain:prints_much", 16, lease=71)
    assert agent.done(71).output_bytes == 16 << 20
    assert len(agent.printed(71, 1)) == 16 << 20


def test_calls_run_one_after_the_other_and_several_may_wait(agent: AgentEnd) -> None:
    sent = [frames.Call(lease=100 + i, entrypoint="plain:nothing") for i in range(500)]
    agent.send(*sent, sent[0])
    agent.done(599)
    ended = [frame.lease for frame in agent.seen if isinstance(frame, frames.Done)]
    assert [lease for lease in ended if 100 <= lease < 600] == list(range(100, 600))


def test_a_cancelled_function_that_looks_keeps_its_worker(agent: AgentEnd, tmp_path: pathlib.Path) -> None:
    agent.call("plain:waits_for", str(tmp_path / "never"), "half way", lease=81)
    shown = agent.until(lambda frame: isinstance(frame, frames.Progress) and frame.lease == 81)
    assert (shown.permille, shown.text) == (400, "half way")
    agent.until(lambda frame: isinstance(frame, frames.Started) and frame.lease == 81)
    agent.call("plain:nothing", lease=82)
    agent.send(frames.Cancel(lease=82), frames.Cancel(lease=81))
    assert agent.done(82).error == "cancelled before it began"
    assert agent.done(81).outcome == "cancelled"


def test_a_call_whose_time_is_up_sees_it(agent: AgentEnd, tmp_path: pathlib.Path) -> None:
    assert agent.run("plain:waits_for", str(tmp_path / "never"), timeout_ms=30).outcome == "timeout"


def test_a_new_agent_hears_of_all_calls_and_gets_kept_results(
    worker: WorkerProcess, tmp_path: pathlib.Path
) -> None:
    """An agent that restarts loses no result, and none is run again."""
    flag = tmp_path / "flag"
    first = worker.connect()
    first.call("plain:add", 1, 1, lease=91)
    first.done(91)
    first.call("plain:waits_without_looking", str(flag), lease=92)
    first.call("plain:add", 2, 2, lease=93)
    first.until(lambda frame: isinstance(frame, frames.Started) and frame.lease == 92)
    second = worker.connect()
    hello = second.seen[0]
    assert isinstance(hello, frames.Hello)
    assert [(call.lease, call.state) for call in hello.calls][-3:] == [
        (91, "done"),
        (92, "running"),
        (93, "queued"),
    ]
    assert msgspec.msgpack.decode(second.done(91).result) == 2
    flag.touch()
    assert msgspec.msgpack.decode(second.done(92).result) == "seen"
    assert msgspec.msgpack.decode(second.done(93).result) == 4
    second.send(frames.Taken(leases=(91, 92, 93)))
    third = worker.connect()
    assert third.value("plain:nothing") is None
    assert not [call for call in third.seen[0].calls if call.lease in {91, 92, 93}]
