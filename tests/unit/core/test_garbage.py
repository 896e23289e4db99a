"""Nothing that a decision leaves behind waits for the garbage collector.

Under load the collector of a scheduler runs rarely. A reference cycle keeps all that it reaches until then: a copy of the
whole state for each forecast.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import pytest

from building import cluster, do, finished, node, run_pass, task
from dgpu.core.commands import DrainNode, ReportStarted, SetQuota
from dgpu.core.digest import digest
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.foresight.sooner import sooner
from dgpu.core.foresight.trial import try_quota
from dgpu.core.foresight.whatif import whatif
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState

MINUTE = 60_000
LARGE, SMALL = TaskId(7), TaskId(27)


def garbage_of(work: Callable[[], object]) -> Counter[str]:
    """Types of the objects that only a collection frees."""
    work()  # the first time fills caches
    gc.collect()
    gc.disable()
    try:
        work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def waiting() -> ClusterState:
    """Two full nodes; large and small tasks wait, and some hold reservations."""
    full = (node("n1", gpus=4), node("n2", gpus=4), task(gpus=2, timeout_ms=MINUTE, count=4))
    state = cluster(*full, settings=Settings(memory_margin_mb=0, reservations=4))
    run_pass(state)
    for lease_id in tuple(state.leases):
        do(state, ReportStarted(lease_id=lease_id))
    do(state, task(gpus=4, timeout_ms=MINUTE, count=3))
    do(state, task(gpus=1, timeout_ms=5 * MINUTE, count=20))
    run_pass(state)
    assert state.reservations
    return state


def test_passes_leave_no_garbage() -> None:
    state = waiting()

    def work() -> None:
        for _ in range(3):
            do(state, finished(min(state.leases)))
            run_pass(state)

    assert not garbage_of(work)


@pytest.mark.parametrize(
    "look",
    [
        lambda state: forecast(state, state.last_at),
        lambda state: whatif(state, (DrainNode(node_id=NodeId("n1"), reason="power"),), state.last_at),
        lambda state: whatif(state, (DrainNode(node_id=NodeId("n9"), reason="power"),), state.last_at),
        lambda state: sooner(state, LARGE, state.last_at),
        lambda state: sooner(state, SMALL, state.last_at),
        lambda state: explain(state, LARGE, state.last_at),
        lambda state: try_quota(state, SetQuota(online_ppm=100_000), state.last_at),
        lambda state: try_quota(state, SetQuota(online_ppm=2_000_000), state.last_at),
    ],
    ids=["forecast", "whatif", "refused", "sooner", "sooner-small", "explain", "quota", "quota-refused"],
)
def test_a_look_ahead_leaves_no_garbage(look: Callable[[ClusterState], object]) -> None:
    state = waiting()
    before = digest(state)
    assert not garbage_of(lambda: look(state))
    assert digest(state) == before


def test_the_state_is_used_on_after_a_look_ahead() -> None:
    """The end of a fork touches nothing that the state itself needs."""
    state = waiting()
    twin = waiting()
    forecast(state, state.last_at)
    sooner(state, LARGE, state.last_at)
    for each in (state, twin):
        for _ in range(6):
            do(each, finished(min(each.leases)))
            run_pass(each)
    assert digest(state) == digest(twin)
