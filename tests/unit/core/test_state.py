"""The state as a whole: dispatch, digest, replay, fork, rebuild."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from building import START, cluster, do, finished, lease, node, run_pass, task
from dgpu.core.apply.table import APPLIERS
from dgpu.core.commands import BeginEpoch, CancelTasks, Command, LoseNode, RunPass
from dgpu.core.decide.table import DECIDERS
from dgpu.core.digest import digest
from dgpu.core.events import Event
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Task
from dgpu.core.parts import Parts
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState


def busy_cluster() -> tuple[ClusterState, list[Event]]:
    state, events = ClusterState(), []
    for command in (
        BeginEpoch(at=START, settings=Settings(keep_finished=5)),
        node("n1", gpus=2),
        node("n2", gpus=4),
        task(count=6, key="k", fingerprint="f"),
        task(2, priority=80, cpus=3),
        RunPass(),
        finished(1),
        finished(2, outcome=Outcome.NODE_FAULT),
        CancelTasks(task_ids=(6,)),
        LoseNode(node_id="n1", reason="silent"),
    ):
        events += do(state, command)
    return state, events


@pytest.mark.parametrize(("table", "kind"), [(DECIDERS, Command), (APPLIERS, Event)])
def test_every_command_and_event_has_its_place(table, kind) -> None:
    assert set(table) == set(kind.__subclasses__())


def test_a_replay_gives_an_equal_state() -> None:
    state, events = busy_cluster()
    again = replay(events)
    check_invariants(again)
    assert digest(again) == digest(state)


def test_a_replay_goes_on_from_a_given_state() -> None:
    state, events = busy_cluster()
    assert digest(replay(events[5:], replay(events[:5]))) == digest(state)


def test_the_digest_sees_every_part_and_no_order_of_dicts() -> None:
    state, _ = busy_cluster()
    parts = state.parts()
    shuffled = {
        name: dict(reversed(part.items())) if isinstance(part, dict) else part
        for name, part in msgspec.structs.asdict(parts).items()
    }
    assert digest(ClusterState.from_parts(Parts(**shuffled)), with_keys=False) == digest(
        state, with_keys=False
    )
    for name, part in msgspec.structs.asdict(parts).items():
        if part == {}:
            continue  # left out of the digest
        if isinstance(part, dict):
            other = dict(list(part.items())[1:])
        elif isinstance(part, int):
            other = part + 1
        elif isinstance(part, str):
            other = f"{part}x"
        else:
            other = Settings()
        changed = state.fork()
        setattr(changed, name, other)
        assert digest(changed) != digest(state), name


def test_the_digest_is_the_same_whatever_the_hash_seed() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from building import cluster, node, task, lease\n"
        "from dgpu.core.digest import digest\n"
        "print(digest(cluster(node('n1', gpus=3), node('n2'), task(count=3, key='a'), task(2), lease(2, on='n1'))))\n"
    )
    tests = Path(__file__).resolve().parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(tests)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_fork_goes_its_own_way() -> None:
    state, _ = busy_cluster()
    before = digest(state)
    fork = state.fork()
    check_invariants(fork)
    do(fork, task(count=3))
    run_pass(fork)
    do(fork, node("n3", gpus=2))
    do(fork, CancelTasks())
    assert digest(state) == before
    check_invariants(state)


def test_a_fork_decides_as_its_origin_does() -> None:
    state, _ = busy_cluster()
    do(state, node("n3", gpus=2))
    fork = state.fork()
    assert do(fork, RunPass(), at=state.last_at + 5_000) == do(state, RunPass(), at=state.last_at + 5_000)
    assert digest(fork) == digest(state)


def test_a_state_from_its_parts_is_complete() -> None:
    """What a snapshot holds is enough."""
    state, _ = busy_cluster()
    parts = state.fork().parts()
    again = ClusterState.from_parts(parts)
    for packed in state.key_ring.packed():
        again.key_ring.add(packed)
    check_invariants(again)
    assert digest(again) == digest(state)
    assert run_pass(again, at=state.last_at + 5_000) == run_pass(state, at=state.last_at + 5_000)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state: state.leases.pop(3),
        lambda state: state.queue.remove(state.tasks[2]),
        lambda state: state.rooms.by_node["n2"].idle.clear(),
        lambda state: state.gpus.pop("GPU-n2-0"),
        lambda state: state.rooms.holders.clear(),
        lambda state: state.tasks.pop(6),
        lambda state: setattr(state, "next_task_id", 3),
    ],
)
def test_a_broken_state_is_noticed(break_it) -> None:
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), task(count=6))
    for number in (1, 3):
        lease(number, on="n1")(state)
    lease(4, on="n2")(state)
    check_invariants(state)
    break_it(state)
    with pytest.raises((AssertionError, KeyError)):
        check_invariants(state)


def test_waiting_tasks_are_no_work_for_the_garbage_collector() -> None:
    state = cluster(task(count=10))
    assert isinstance(state.tasks[1], Task)
    assert not any(gc.is_tracked(each) for each in state.tasks.values())


def test_the_lists_of_changes_stay_short_where_nobody_runs_a_pass() -> None:
    """A follower only applies events."""
    state = cluster(node("n1", gpus=1), task(count=2))
    for turn in range(6_000):
        lease(1 + turn % 2, on="n1")(state)
        do(state, finished(turn + 1, outcome=Outcome.STOPPED))
    assert len(state.rooms._rankings._changes) < 5_000
    assert len(state.queue.beds._awake._turns) < 200
    assert len(state.queue.beds._offers._beds) < 200
    assert run_pass(state) == [1]


def test_times_at_which_tasks_are_tried_again_are_forgotten_where_nobody_runs_a_pass() -> None:
    state = cluster(node("n1", gpus=1), task(max_retries=1_000))
    for turn in range(400):
        lease(1, on="n1")(state)
        do(state, finished(turn + 1, outcome=Outcome.NODE_FAULT))
    assert state.queue.back_off
    assert len(state.queue._back_off_heap) < 200


def test_an_order_of_nodes_that_was_not_used_for_long_is_made_again() -> None:
    """The list of changes that it missed is gone."""
    state = cluster(node("n1"), node("n2"), task(count=2))
    rankings = state.rooms._rankings
    assert rankings.best(state.queue.shapes[1].demand).node_id == "n1"
    for turn in range(10_000):
        lease(1 + turn % 2, on="n1")(state)
        if not rankings._changes:
            break
        do(state, finished(turn + 1, outcome=Outcome.STOPPED))
    assert not rankings._changes
    assert rankings.best(state.queue.shapes[1].demand).node_id == "n2"
