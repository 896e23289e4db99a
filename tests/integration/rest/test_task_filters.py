"""Filters of the list of tasks, and lists in which an array is one row."""

from __future__ import annotations

from typing import Any

import pytest

from dgpu.client import Client
from dgpu.core.model.settings import Settings
from dgpu.service.rest import searching
from rest_world import RestWorld


def pages(world: RestWorld, query: str) -> list[dict[str, Any]]:
    found, cursor = [], ""
    for _ in range(100):
        page = world.ask("GET", f"/api/v1/tasks?{query}{cursor}").body
        found.append(page)
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("the pages do not end")


def ids(world: RestWorld, query: str) -> list[int]:
    return [int(task["task_id"][5:]) for page in pages(world, query) for task in page["tasks"]]


def folded(world: RestWorld, query: str) -> list[tuple[str, dict[str, int] | None]]:
    rows = [task for page in pages(world, f"fold=true&{query}") for task in page["tasks"]]
    shown = []
    for row in rows:
        array = row["array"]
        numbers = None if array is None else {k: v for k, v in array.items() if v and k != "failures"}
        shown.append((row["array_id"] if array else row["task_id"], numbers))
    return shown


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Only read. Tasks 1 to 4 are a forgotten array, 5 is over, 6 to 10 are an array of which 2 run, 11 waits."""
    with RestWorld(tmp_path_factory.mktemp("world"), settings=Settings(keep_finished=1)) as running:
        running.add_node("n1", 2)
        running.submit(name="old", array="0-3", labels={"user": "ann"})
        running.finish_running()
        running.finish_running(exit_code=1)
        running.submit(name="one", labels={"user": "bob", "team": "nlp", "odd": 'a"b'})
        running.finish_running()
        running.forget()
        running.submit(name="sweep-a", array="0-4", labels={"user": "ann", "team": "nlp"})
        running.submit(name="sweep-[b]", labels={"user": "bob"})
        assert running.read(lambda state: sorted(state.tasks)) == [5, 6, 7, 8, 9, 10, 11]
        yield running


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("status=running,failed", [7, 6, 4, 3]),
        ("status=success,cancelled", [5, 2, 1]),
        ("name=one", [5]),
        ("name=on", []),
        ("name=sweep*", [11, 10, 9, 8, 7, 6]),
        ("name=sweep-%5Bb%5D", [11]),
        ("name=o??", [5, 4, 3, 2, 1]),
        ("user=bob", [11, 5]),
        ("user=ann&status=pending", [10, 9, 8]),
        ("label=team=nlp", [10, 9, 8, 7, 6, 5]),
        ("label=team=nlp,user=bob", [5]),
        ("label=odd=a%22b", [5]),
        ("array=task-1", [4, 3, 2, 1]),
        ("array=6&sort=oldest", [6, 7, 8, 9, 10]),
        ("array=6&status=running", [7, 6]),
        ("array=5", []),
        ("array=7", []),
        ("node=n1&name=sweep*", [7, 6]),
    ],
)
def test_a_filter_finds_tasks_in_memory_and_in_the_history(world, query, wanted) -> None:
    assert ids(world, query) == wanted
    assert ids(world, f"{query}&limit=2") == wanted


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("status=running,done", "status"),
        ("status=", "status"),
        ("name=", "name"),
        ("label=team", "label"),
        ("label==x", "label"),
        ("array=6_1", "array"),
        ("array=x", "array"),
        ("fold=maybe", "fold"),
        ("fold=true&sort=oldest", "fold"),
    ],
)
def test_a_wrong_filter_is_refused_by_name(world, query, path) -> None:
    reply = world.ask("GET", f"/api/v1/tasks?{query}")
    assert (reply.status, reply.body["errors"][0]["path"]) == (400, path)


SWEEP = {"count": 5, "pending": 3, "running": 2}
OLD = {"count": 4, "success": 2, "failed": 2}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", [("task-11", None), ("task-6", SWEEP), ("task-5", None), ("task-1", OLD)]),
        ("status=running", [("task-6", SWEEP)]),
        ("status=pending", [("task-11", None), ("task-6", SWEEP)]),
        ("status=failed", [("task-1", OLD)]),
        ("user=ann", [("task-6", SWEEP), ("task-1", OLD)]),
        ("status=success,running", [("task-6", SWEEP), ("task-5", None), ("task-1", OLD)]),
    ],
)
@pytest.mark.parametrize("at_a_time", [1, 2, 2_000])
def test_an_array_is_one_row_of_a_folded_list_on_any_page(
    world, monkeypatch, query, wanted, at_a_time
) -> None:
    monkeypatch.setattr(searching, "AT_A_TIME", at_a_time)
    assert folded(world, query) == wanted
    assert folded(world, f"{query}&limit=1") == wanted
    assert folded(world, f"{query}&limit=3") == wanted
    if "user" not in query and "," not in query:
        assert pages(world, f"fold=true&{query}")[0]["total"] == pages(world, query)[0]["total"]


def test_a_folded_page_is_full_although_an_array_has_more_tasks_than_the_page(world) -> None:
    page = world.ask("GET", "/api/v1/tasks?fold=true&limit=3").body
    assert [task["array_id"] or task["task_id"] for task in page["tasks"]] == ["task-11", "task-6", "task-5"]


def test_a_search_that_stops_within_an_array_shows_it_once(world, monkeypatch) -> None:
    for most in range(1, 8):
        monkeypatch.setattr(searching, "MAX_LOOKED_AT", most)
        assert [name for name, _ in folded(world, "user=ann")] == ["task-6", "task-1"], most


def test_a_client_filters_and_folds(world) -> None:
    with Client(world.url) as client:
        rows = list(client.list(user="ann", fold="true", page_size=1))
        assert [row.array_id for row in rows] == ["task-6", "task-1"]
        assert rows[0].array is not None
        assert (rows[0].blockers[0]["code"], rows[0].blockers[0]["busy"]) == ("gpus_busy", 2)
        assert [task.array_index for task in client.list(array="task-6", status="running")] == [1, 0]
