from __future__ import annotations

from urllib.parse import urlencode

import pytest


@pytest.mark.parametrize(
    ("filters", "number"),
    [
        ({"name": "sweep*"}, 3),
        ({"name": "sweep*", "status": "pending"}, 2),
        ({"name": "sweep*", "status": "pending,running", "pool": "online"}, 0),
        ({"label": "run=7"}, 1),
        ({"user": "ann"}, 1),
        ({"node": "n1"}, 1),
        ({"q": "needle"}, 1),
        ({"array": "task-5", "q": "x"}, 2),
        ({"name": "nothing"}, 0),
    ],
)
def test_a_cancel_takes_every_filter_of_the_list(world, filters: dict[str, str], number: int) -> None:
    """The tasks that a list shows can be cancelled with the same filters."""
    world.add_node("n1", gpus=1)
    world.submit(name="sweep-1")
    world.submit(name="sweep-2", labels={"run": "7"})
    world.submit(name="sweep-3", labels={"user": "ann"})
    world.submit(command="needle")
    world.submit(command="x", array="0-1")
    assert world.ask("POST", "/api/v1/tasks/cancel", filters).body == {"cancelled": number}
    query = urlencode({"status": "pending,running", **filters})
    assert [
        task["task_id"]
        for task in world.ask("GET", f"/api/v1/tasks?{query}").body["tasks"]
        if not task["cancelling"]
    ] == []
