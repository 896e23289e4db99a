"""What would start a waiting task now. Every answer is made true on a fork: the task then starts."""

from __future__ import annotations

import pytest

from building import cluster, do, gpu, node, run_pass, task
from building.changes import starts_it
from dgpu.core.commands import DrainNode, HoldTasks
from dgpu.core.digest import digest
from dgpu.core.foresight.sooner import MAX_TRIES, Change, sooner
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.state import ClusterState

STRICT = Settings(quota=Quota(online_ppm=700_000, mode=QuotaMode.STRICT), memory_margin_mb=0)


def told(state: ClusterState, task_id: int) -> dict[str, Change]:
    before = digest(state)
    found = sooner(state, task_id, state.last_at)
    assert digest(state) == before
    for change in found:
        assert starts_it(state.fork(), task_id, change), change
    return {change.change: change for change in found}


def settled(*steps, settings: Settings | None = None) -> ClusterState:
    state = cluster(*steps, settings=settings)
    run_pass(state)
    return state


def test_fewer_gpus_and_waiting_for_the_task_on_the_nearest_node() -> None:
    state = settled(node("n1", gpus=4), node("n2", gpus=2), task(3), task(2), task(4))
    found = told(state, 3)
    assert list(found) == ["gpu_count", "wait"]
    assert found["gpu_count"].detail == "with 1 GPU instead of 4"
    assert found["wait"].detail == "when task-1 on node n1 is over"


def test_the_task_that_may_run_the_shortest_is_waited_for() -> None:
    state = settled(node("n1", gpus=2), task(timeout_ms=600_000), task(timeout_ms=60_000), task())
    assert told(state, 3)["wait"].detail == "when task-2 on node n1 is over"


def test_the_most_gpus_that_can_be_had_are_named_not_one() -> None:
    state = settled(node("n1", gpus=8), task(3), task(8))
    assert told(state, 2)["gpu_count"].facts == {"gpu_count": 5, "instead_of": 8}


def test_those_ahead_would_take_what_comes_free_so_waiting_for_it_is_not_told() -> None:
    state = settled(node("n1"), task(), task(count=2))
    assert "wait" in told(state, 2)
    assert told(state, 3) == {}


def test_less_memory_another_model_other_nodes() -> None:
    cards = (gpu("a", memory_mb=16_384),)
    state = settled(node("n1", gpus=cards), node("n2", model="T4", memory_mb=32_768), task(models=("T4",)))
    do(state, task(memory_mb=24_576))
    assert told(state, 2)["gpu_memory_mb"].facts == {"gpu_memory_mb": 16_384, "instead_of": 24_576}
    do(state, task(models=("T4",)))
    assert told(state, 3)["gpu_model"].detail == "on V100 instead of T4"
    do(state, task(constraints=(("node", True, ("n2",)),)))
    assert told(state, 4)["constraints"].detail == "without its constraints"


def test_fewer_cpus_and_less_ram() -> None:
    state = settled(node("n1", cpus=8, ram_mb=8_192), task(0, cpus=5, ram_mb=5_120))
    do(state, task(0, cpus=6))
    assert told(state, 2)["cpus"].facts == {"cpus": 3, "instead_of": 6}
    do(state, task(0, ram_mb=6_144))
    assert told(state, 3)["ram_mb"].facts == {"ram_mb": 3_072, "instead_of": 6_144}


def test_fewer_nodes_for_a_gang() -> None:
    state = settled(node("n1"), node("n2"), node("n3"), task(), task(nodes=3))
    assert told(state, 2)["nodes"].detail == "with 2 nodes instead of 3"


def test_a_held_task_would_start_if_released() -> None:
    state = cluster(node("n1"), task())
    do(state, HoldTasks(task_ids=(1,)))
    assert list(told(state, 1)) == ["release"]


def test_a_drained_node_would_do_if_resumed() -> None:
    state = cluster(node("n1"))
    do(state, DrainNode(node_id="n1"))
    do(state, task())
    run_pass(state)
    assert told(state, 1)["resume"].facts == {"node": "n1"}


def test_a_pool_without_quota_names_the_quota_the_other_pool_and_borrowing() -> None:
    state = settled(node("n1", gpus=10), task(count=4), settings=STRICT)
    assert state.waiting_count == 1
    found = told(state, 4)
    assert list(found) == ["pool", "quota", "quota_mode", "wait"]
    assert found["quota"].facts == {"online_ppm": 600_000, "pool": "batch", "percent": 40}
    assert found["quota"].detail == "if the pool batch had 40 % of the GPUs"
    assert found["pool"].facts == {"pool": "online"}


def test_nothing_is_told_of_what_runs_is_over_or_starts_anyway() -> None:
    state = cluster(node("n1", gpus=2), task())
    assert told(state, 1) == {}
    run_pass(state)
    assert told(state, 1) == {}
    assert told(state, 99) == {}


def test_when_no_single_change_helps_none_is_told() -> None:
    state = settled(node("n1", model="T4"), task(models=("T4",)))
    do(state, task(models=("H100", "T4"), memory_mb=8_192, cpus=2))
    found = told(state, 2)
    assert list(found) == ["wait"]


@pytest.mark.patches_core
def test_the_number_of_tries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    fork = ClusterState.fork

    def counted(self: ClusterState) -> ClusterState:
        nonlocal tries
        tries += 1
        return fork(self)

    monkeypatch.setattr(ClusterState, "fork", counted)
    nodes = [node(f"n{number}", gpus=8) for number in range(30)]
    state = settled(
        *nodes, task(8, count=30), task(8, pool=Pool.ONLINE, priority=90, count=3), task(8, count=3)
    )
    for number in range(20):
        do(state, DrainNode(node_id=f"n{number}"))
    sooner(state, 36, state.last_at)
    assert 0 < tries <= MAX_TRIES + 2


def test_constraints_are_not_named_where_no_other_node_is_free_either() -> None:
    """A user who gives up the wanted node, and waits as before, has lost something for nothing."""
    state = settled(node("n1"), node("n2"), task(count=2, timeout_ms=None))
    do(state, task(constraints=(("node", True, ("n2",)),)))
    assert "constraints" not in told(state, 3)
