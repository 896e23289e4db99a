"""The median wait of the dashboard: tasks that started within the last hour."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dgpu.core.state import ClusterState
from dgpu.service.board.figures import Traffic
from rest_world import RestWorld


@pytest.fixture
def world(tmp_path):
    with RestWorld(tmp_path) as world:
        yield world


def test_tasks_that_started_while_no_dashboard_was_open_count(world) -> None:
    """It is that of the last hour, not that since the first look."""
    world.add_node("n1", gpus=3)
    for _ in range(3):
        world.submit()

    def shift(state: ClusterState) -> None:
        for number, (task_id, task) in enumerate(list(state.tasks.items())):
            waited = (600_000, 1_000, 0)[number]
            started_at = state.last_at - (4_000_000 if number == 1 else 1_200_000)
            state.tasks[task_id] = replace(task, created_at=started_at - waited, started_at=started_at)

    world.read(shift)
    views = SimpleNamespace(recent=(), last_index=world.views.last_index)
    traffic = Traffic(views)

    def look(state: ClusterState) -> tuple[int | None, int | None]:
        traffic.look(state, state.last_at)
        return traffic.waits(state.last_at)

    assert world.read(look) == (600_000, 600_000), "the start before the last hour does not count"
    later = world.read(lambda state: state.last_at) + 2_500_000
    assert traffic.waits(later) == (None, None)
