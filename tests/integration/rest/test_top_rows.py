"""The rows of `dgpu top`: an array is one row, and its tasks are listed when it is opened."""

from __future__ import annotations

import asyncio

from dgpu.cli.live.feed import Tasks, take_tasks
from dgpu.client.asynchronous import AsyncClient
from rest_world import RestWorld


def rows_of(world: RestWorld, *opened: str) -> Tasks:
    async def take() -> Tasks:
        async with AsyncClient(world.url) as client:
            return await take_tasks(client, opened)

    return asyncio.run(take())


def test_an_array_is_one_row_with_its_progress(tmp_path) -> None:
    """Ten thousand rows of one sweep would hide every other task."""
    with RestWorld(tmp_path) as world:
        world.add_node("n1", gpus=3)
        world.submit(name="alone")
        world.submit(name="sweep", array="0-9")
        world.submit(name="waits", array="0-3", gpu_count=2)
        world.submit(name="last")
        told = rows_of(world)
        assert [(row.name, row.status, row.tasks, bool(row.array_id)) for row in told.rows] == [
            ("alone", "running", 1, False),
            ("sweep", "running", 10, True),
            ("waits", "pending", 4, True),
            ("last", "pending", 1, False),
        ]
        assert (told.running, told.waiting) == (3, 13)
        assert told.rows[1].where == "0/10 done, 2 running, 8 waiting"
        assert told.rows[2].where.startswith("0/4 done, 4 waiting: ")

        array_id = told.rows[1].array_id
        opened = rows_of(world, array_id).rows
        inside = [row for row in opened if row.task_id.startswith(f"{array_id}_")]
        assert [row.status for row in inside].count("running") == 2
        assert len(inside) == 10
        assert opened.index(inside[0]) == 2, "its tasks follow the array"
        assert sum(row.tasks for row in opened) == 16, "no task counts twice"


def test_tasks_behind_a_long_array_are_listed(tmp_path) -> None:
    """The first page of the queue has only tasks of the array."""
    with RestWorld(tmp_path) as world:
        world.add_node("n1", gpus=1)
        world.submit(name="sweep", array="0-1500")
        world.submit(name="behind")
        told = rows_of(world)
        assert [row.name for row in told.rows] == ["sweep", "behind"]
        assert told.rows[1].where.startswith("1/1 GPUs busy")
        assert sum(row.tasks for row in told.rows) == told.running + told.waiting == 1_502
