"""Models, memory and the end of a real worker process."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import msgspec
import pytest

from dgpu.worker import frames
from worker_process import worker_process


def is_ready(frame: frames.ToAgent) -> bool:
    return isinstance(frame, frames.Ready)


def test_models_are_loaded_once_and_the_least_recently_used_is_evicted(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path, max_models=2, preload=["with_models:greeter"]) as worker:
        agent = worker.connect()
        agent.until(is_ready)
        assert [agent.value("with_models:greet", name) for name in "ab"] == ["hello a", "hello b"]
        assert agent.value("with_models:counts") == [["greeter"], []]
        agent.value("with_models:use_second")
        agent.value("with_models:greet", "c")
        agent.value("with_models:use_third")
        assert agent.models() == [("greeter", False), ("third", False)]
        agent.value("with_models:use_second")
        assert agent.value("with_models:counts") == [["greeter"], ["hello"]], "its unload has run"
        assert agent.models() == [("third", False), ("second", False)]
        told = [model for frame in agent.seen if isinstance(frame, frames.Models) for model in frame.models]
        assert {model.name for model in told if model.loading} >= {"second", "third"}, "when a load begins"
        assert {model.memory_mb for model in told if model.name == "greeter"} == {100}


def test_unused_models_are_evicted_and_loaded_again_when_needed(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path, model_ttl_ms=1) as worker:
        agent = worker.connect()
        agent.value("with_models:greet", "a")
        agent.until(lambda _: agent.models() == [])
        agent.value("with_models:greet", "b")
        assert agent.value("with_models:counts")[0] == ["greeter", "greeter"]


def test_out_of_gpu_memory_empties_the_cache_and_the_worker_goes_on(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path) as worker:
        agent = worker.connect()
        agent.value("with_models:greet", "a")
        done = agent.run("plain:no_gpu_memory")
        assert done.outcome == "out_of_memory"
        assert done.error.endswith("CUDA out of memory. Tried to allocate 20.00 GiB")
        assert agent.models() == []
        assert agent.value("with_models:counts") == [["greeter"], ["hello"]]
        assert agent.value("with_models:greet", "b") == "hello b"


def test_a_worker_with_a_broken_gpu_tells_the_result_and_ends(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path) as worker:
        agent = worker.connect()
        assert (
            agent.run("plain:breaks_the_gpu").error
            == "RuntimeError: CUDA error: device-side assert triggered"
        )
        assert worker.process.wait(30) == 70
        assert "the GPU does not work in this process any more" in worker.stderr.read_text()


@pytest.mark.parametrize(
    ("preload", "words"),
    [
        ("with_models:broken", "no weights"),
        ("no_such_module", "no module 'no_such_module'"),
        ("plain:add", "expected a function decorated with @dgpu.model"),
    ],
)
def test_a_preload_that_fails_ends_the_worker_with_its_reason(
    tmp_path: pathlib.Path, preload: str, words: str
) -> None:
    with worker_process(tmp_path, preload=[preload]) as worker:
        assert worker.process.wait(30) == 1
        assert f"dgpu: preload of {preload!r} failed:" in worker.stderr.read_text()
        assert words in worker.stderr.read_text()


@pytest.mark.parametrize("by", ["frame", "signal"])
def test_leave_unloads_models_drops_waiting_calls_and_exits(tmp_path: pathlib.Path, by: str) -> None:
    """A function that looks at dgpu.cancelled() ends by itself; a call that has not begun is left to others."""
    with worker_process(tmp_path) as worker:
        agent = worker.connect()
        agent.value("with_models:greet", "a")
        agent.call("plain:waits_for", str(tmp_path / "never"), lease=1)
        agent.call("plain:nothing", lease=2)
        agent.until(lambda frame: isinstance(frame, frames.Started) and frame.lease == 1)
        if by == "frame":
            agent.send(frames.Leave())
        else:
            worker.process.send_signal(signal.SIGTERM)
        assert agent.done(1).outcome == "cancelled"
        agent.send(frames.Taken(leases=(1,)))
        agent.until(lambda _: agent.models() == [])
        assert worker.process.wait(30) == 0
        assert not [frame for frame in agent.seen if isinstance(frame, frames.Done) and frame.lease == 2]


def test_a_function_that_blocks_signals_does_not_block_them_for_the_worker(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path) as worker:
        agent = worker.connect()
        assert agent.value("plain:blocks_signals") == worker.process.pid
        agent.value("plain:nothing")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0


def test_heartbeats_come_while_a_function_is_busy_and_while_none_runs(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path, heartbeat_ms=20) as worker:
        agent = worker.connect()
        agent.until(lambda frame: isinstance(frame, frames.Beat))
        agent.call("plain:waits_without_looking", str(tmp_path / "flag"), lease=1)
        agent.until(lambda frame: isinstance(frame, frames.Started))
        agent.seen.clear()
        agent.until(lambda frame: isinstance(frame, frames.Beat))
        (tmp_path / "flag").touch()
        assert msgspec.msgpack.decode(agent.done(1).result) == "seen"


def test_prints_wait_while_no_agent_reads_and_are_all_there_afterwards(tmp_path: pathlib.Path) -> None:
    """Memory of the worker stays bounded: the function itself waits."""
    with worker_process(tmp_path) as worker:
        first = worker.connect()
        first.call("plain:prints_much", 12, lease=1)
        first.until(lambda frame: isinstance(frame, frames.Started))
        first.close()
        second = worker.connect()
        hello: Any = second.seen[0]
        assert [(call.lease, call.state) for call in hello.calls] == [(1, "running")]
        assert second.done(1).output_bytes == 12 << 20
        read = sum(len(frame.data) for frame in second.seen if isinstance(frame, frames.Output))
        lost = (12 << 20) - read
        assert 0 <= lost <= 4 << 20, "lost: only bytes that were on their way to the first agent"


def test_output_between_calls_is_the_workers_own(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path, preload=["prints_at_import"]) as worker:
        agent = worker.connect()
        agent.until(is_ready)
        agent.value("plain:nothing")
        assert worker.stdout.read_text() == "imported\n"
        assert not [frame for frame in agent.seen if isinstance(frame, frames.Output)]


def test_a_program_that_does_not_keep_to_the_protocol_is_disconnected(tmp_path: pathlib.Path) -> None:
    with worker_process(tmp_path) as worker:
        agent = worker.connect()
        agent.socket.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(AssertionError, match="closed the connection"):
            agent.until(lambda _: False)
        assert worker.connect().value("plain:add", 1, 1) == 2
        assert "is longer than" in worker.stderr.read_text()
