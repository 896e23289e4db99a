"""Submitting: all or nothing."""

from __future__ import annotations

import pytest

from building import cluster, do, gpu, node, run_pass, spec, task, tried
from dgpu.core.commands import CancelTasks, ChangeInventory, LoseNode, RemoveNode, SubmitTasks
from dgpu.core.digest import digest
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, TaskStatus, in_steps
from dgpu.core.rejections import AlreadySubmitted, KeyReused, NeverFits, QueueFull, TimeoutTooLong

HOUR = 3_600_000


def test_ids_are_consecutive_over_all_entries_and_shapes_are_shared() -> None:
    state = cluster(SubmitTasks(entries=((2, spec(1)), (1, spec(2)), (1, spec(1)))))
    assert sorted(state.tasks) == [1, 2, 3, 4]
    assert [state.shapes[state.tasks[number].shape_id].gpus for number in (1, 2, 3, 4)] == [1, 1, 2, 1]
    assert len(state.shapes) == 2
    assert state.waiting_count == 4


def test_one_entry_that_cannot_run_refuses_the_whole_batch() -> None:
    state = cluster(node("n1", gpus=2))
    before = digest(state)
    refusal = tried(state, SubmitTasks(entries=((1, spec(1)), (1, spec(4)))))
    assert refusal == NeverFits(entry=1, lacks="gpus", requested=4, largest=2)
    assert digest(state) == before


@pytest.mark.parametrize(
    ("asked", "lacks", "requested", "largest"),
    [
        ({"gpus": 9}, "gpus", 9, 3),
        ({"gpus": 1, "models": ("H100", "A100")}, "gpu_model", "H100, A100", "T4, V100"),
        ({"gpus": 3, "models": ("T4",)}, "gpus", 3, 2),
        ({"gpus": 2, "memory_mb": 40_000}, "gpu_memory_mb", 40_000, 32_768),
        ({"gpus": 3, "memory_mb": 20_000}, "gpu_memory_mb", 20_000, 16_384),
        ({"gpus": 1, "cpus": 65}, "cpus", 65, 64),
        ({"gpus": 0, "ram_mb": 300_000}, "ram_mb", 300_000, 262_144),
    ],
)
def test_what_no_node_could_ever_hold_is_refused_with_what_the_best_offers(
    asked, lacks, requested, largest
) -> None:
    big = (
        gpu("a", on="big", index=0, memory_mb=32_768),
        gpu("b", on="big", index=1, memory_mb=32_768),
        gpu("c", on="big", index=2, memory_mb=16_384),
    )
    state = cluster(node("big", gpus=big), node("small", gpus=2, model="T4"))
    assert tried(state, task(**asked)) == NeverFits(
        entry=0, lacks=lacks, requested=requested, largest=largest
    )


def test_all_of_a_card_and_all_of_a_nodes_memory_can_be_had() -> None:
    """Demands are rounded up to steps; what nodes report is not, and must not lose its last step by that."""
    card = gpu("a", on="n1", index=0, memory_mb=24_564)
    state = cluster(node("n1", gpus=(card,), ram_mb=24_103))
    do(state, task(1, memory_mb=in_steps(24_564), ram_mb=in_steps(24_103)))
    run_pass(state)
    assert state.tasks[1].status is TaskStatus.RUNNING
    refusal = tried(state, task(1, memory_mb=in_steps(24_564) + 1))
    assert refusal == NeverFits(entry=0, lacks="gpu_memory_mb", requested=24_577, largest=24_576)


def test_no_single_node_that_has_both_is_as_good_as_none() -> None:
    """One node has the GPUs and another the cpus: a task lives on one."""
    state = cluster(node("gpus", gpus=8, cpus=4), node("cpus", gpus=1, cpus=64))
    lacks_cpus = NeverFits(entry=0, lacks="cpus", requested=16, largest=4)
    assert tried(state, task(8, cpus=16)) == lacks_cpus
    assert (
        tried(state, task(8, cpus=16, memory_mb=16_384)) == lacks_cpus
    )  # all of the memory that its GPUs have


def test_before_any_node_has_registered_everything_waits() -> None:
    state = cluster(task(64, models=("H900",)))
    assert state.waiting_count == 1


def test_an_offline_node_still_counts_for_what_can_run_one_day() -> None:
    state = cluster(node("n1", gpus=4), LoseNode(node_id="n1", reason="silent"))
    do(state, task(4))
    assert state.waiting_count == 1


def test_faulty_gpus_count_and_reserved_ones_do_not() -> None:
    cards = (gpu("a", index=0, fault="ecc"), gpu("b", index=1, reserved=True))
    state = cluster(node("n1", gpus=cards))
    do(state, task(1))
    assert tried(state, task(2)) == NeverFits(entry=0, lacks="gpus", requested=2, largest=1)


def test_a_batch_task_gets_the_default_timeout_and_an_online_one_none() -> None:
    state = cluster(task(), task(pool=Pool.ONLINE), task(timeout_ms=5_000), task(allocation=True))
    assert [state.tasks[number].timeout_ms for number in (1, 2, 3, 4)] == [HOUR, 0, 5_000, HOUR]


def test_without_a_default_a_batch_task_gets_the_maximum() -> None:
    state = cluster(task(), settings=Settings(default_timeout_ms=0, max_timeout_ms=2 * HOUR))
    assert state.tasks[1].timeout_ms == 2 * HOUR


def test_on_a_machine_without_limits_nothing_times_out() -> None:
    state = cluster(task(), task(timeout_ms=0), settings=Settings(default_timeout_ms=0, max_timeout_ms=0))
    assert [state.tasks[number].timeout_ms for number in (1, 2)] == [0, 0]


@pytest.mark.parametrize("timeout_ms", [24 * HOUR + 1, 0])
def test_a_timeout_beyond_the_maximum_is_refused(timeout_ms: int) -> None:
    """No limit at all is beyond any maximum."""
    state = cluster()
    assert tried(state, task(timeout_ms=timeout_ms)) == TimeoutTooLong(
        entry=0, timeout_ms=timeout_ms, max_timeout_ms=24 * HOUR
    )


def test_an_online_service_may_ask_for_no_limit() -> None:
    state = cluster(task(timeout_ms=0, pool=Pool.ONLINE))
    assert state.tasks[1].timeout_ms == 0


def test_the_queue_has_a_bound_and_a_batch_goes_in_whole_or_not_at_all() -> None:
    state = cluster(task(count=3), settings=Settings(max_waiting=4))
    assert tried(state, task(count=2)) == QueueFull(waiting=3, submitted=2, limit=4)
    do(state, task())
    assert state.waiting_count == 4


def test_the_same_key_with_the_same_body_gives_the_first_answer() -> None:
    state = cluster(task(count=3, key="t/a", fingerprint="x"))
    again = tried(state, task(count=3, key="t/a", fingerprint="x"))
    assert again == AlreadySubmitted(first_id=1, count=3, created_at=state.key_ring.find("t/a").created_at)
    assert len(state.tasks) == 3


def test_the_same_key_with_another_body_is_refused() -> None:
    state = cluster(task(key="t/a", fingerprint="x"))
    assert tried(state, task(key="t/a", fingerprint="y")) == KeyReused(key="t/a")


def test_a_key_that_is_over_counts_as_new() -> None:
    state = cluster(task(key="t/a", fingerprint="x"), settings=Settings(idempotency_ms=1_000))
    do(state, task(key="t/a", fingerprint="y"), at=state.last_at + 1_000)
    assert state.key_ring.find("t/a").first_id == 2


def test_a_batch_of_nothing_is_nothing() -> None:
    state = cluster()
    assert do(state, SubmitTasks(entries=())) == ()


def test_what_can_run_follows_the_nodes_that_are_there() -> None:
    state = cluster(node("n1", gpus=1), node("n2", gpus=4), task(4))
    do(state, CancelTasks())
    do(state, LoseNode(node_id="n2", reason="sold"))
    do(state, RemoveNode(node_id="n2"))
    assert tried(state, task(4)) == NeverFits(entry=0, lacks="gpus", requested=4, largest=1)
    do(state, node("n2", gpus=4))
    do(state, task(4))
    do(state, ChangeInventory(node_id="n2", gpus=()))
    assert tried(state, task(4)) == NeverFits(entry=0, lacks="gpus", requested=4, largest=1)
