"""Search for tasks by words, node and GPU, from both ends, in memory and among forgotten tasks."""

from __future__ import annotations

import pytest

from dgpu.core.model.settings import Settings
from dgpu.service.rest import searching
from rest_world import RestWorld


def names(world, query: str) -> list[str]:
    reply = world.ask("GET", f"/api/v1/tasks?{query}")
    assert reply.status == 200, reply
    return [task["name"] for task in reply.body["tasks"]]


def walk(world, query: str) -> list[str]:
    found, cursor = [], ""
    for _ in range(100):
        page = world.ask("GET", f"/api/v1/tasks?{query}{cursor}").body
        found += [task["task_id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"
    raise AssertionError("the pages do not end")


@pytest.fixture
def mixed(tmp_path):
    """Tasks 1 to 4 are over and forgotten, 5 and 6 are over and in memory, 7 and 8 run, 9 to 12 wait."""
    with RestWorld(tmp_path, settings=Settings(keep_finished=2)) as world:
        world.add_node("n1", 1)
        world.add_node("n2", 1)
        for number in range(1, 13):
            name = "Train" if number % 2 else "eval"
            world.submit(
                name=f"{name}-{number}",
                command=f"python {name.lower()}.py --seed {number}",
                env={"K": "s3cret"},
            )
        for _ in range(3):
            world.finish_running()
        world.forget()
        assert world.read(lambda state: sorted(state.tasks)) == list(range(5, 13))
        yield world


def test_words_are_found_in_names_commands_ids_and_tenants(mixed) -> None:
    odd = [f"Train-{number}" for number in (11, 9, 7, 5, 3, 1)]
    assert names(mixed, "q=train") == names(mixed, "q=TRAIN.PY") == odd
    assert names(mixed, "q=seed%2012") == ["eval-12"]
    assert names(mixed, "q=task-1&limit=10") == ["eval-12", "Train-11", "eval-10", "Train-1"]
    assert len(names(mixed, "q=default")) == 12, "the tenant's name"
    assert names(mixed, "q=nobody") == []
    assert names(mixed, "q=%25") == [], "a sign of the database means itself"


def test_what_is_in_the_environment_is_not_found(mixed) -> None:
    assert names(mixed, "q=s3cret") == []
    assert names(mixed, "q=%22K%22") == []


def test_searches_and_filters_go_together(mixed) -> None:
    assert names(mixed, "q=train&status=pending") == ["Train-11", "Train-9"]
    assert names(mixed, "q=train&status=running") == ["Train-7"]
    assert names(mixed, "q=train&status=success") == ["Train-5", "Train-3", "Train-1"]
    assert names(mixed, "q=train&tenant=other") == []
    assert names(mixed, "q=train&pool=online") == []


def test_tasks_of_a_node_and_of_a_gpu(mixed) -> None:
    by_node = {node: walk(mixed, f"node={node}") for node in ("n1", "n2", "n3")}
    assert by_node["n3"] == []
    assert sorted(by_node["n1"] + by_node["n2"]) == sorted(f"task-{number}" for number in range(1, 9))
    assert walk(mixed, "gpu=GPU-n1-0") == by_node["n1"]
    assert walk(mixed, "gpu=GPU-n1") == [], "a part of a name is none"
    assert walk(mixed, "node=n1&status=running&q=task") == by_node["n1"][:1]


@pytest.mark.parametrize("limit", [1, 2, 5, 12, 100])
def test_pages_show_everything_once_from_both_ends(mixed, limit, monkeypatch) -> None:
    everything = [f"task-{number}" for number in range(1, 13)]
    assert walk(mixed, f"sort=oldest&limit={limit}") == everything
    assert walk(mixed, f"sort=newest&q=task&limit={limit}") == everything[::-1]
    monkeypatch.setattr(searching, "AT_A_TIME", 3)
    monkeypatch.setattr(searching, "MAX_LOOKED_AT", 3)
    assert walk(mixed, f"sort=oldest&q=task&limit={limit}") == everything
    assert walk(mixed, f"q=task&limit={limit}") == everything[::-1]
    assert walk(mixed, f"q=eval-12&limit={limit}") == ["task-12"]
    assert walk(mixed, f"q=train-1&sort=oldest&limit={limit}") == ["task-1", "task-11"]


@pytest.mark.parametrize("sort", ["newest", "oldest"])
def test_what_one_source_finds_early_is_not_shown_twice(tmp_path, monkeypatch, sort) -> None:
    """The history finds the tenant's one task at once, while the memory is looked through page by page."""
    monkeypatch.setattr(searching, "AT_A_TIME", 3)
    monkeypatch.setattr(searching, "MAX_LOOKED_AT", 3)
    with RestWorld(tmp_path, settings=Settings(keep_finished=0)) as world:
        world.add_node("n1", 1)
        ended = [world.submit(tenant_id="lab") for _ in range(2)]
        for _ in ended:
            world.finish_running()
        world.forget()
        waits = [world.submit(tenant_id="lab" if number == 4 else "default") for number in range(9)]
        wanted = [*ended, waits[4]]
        assert walk(world, f"tenant=lab&q=task&sort={sort}") == (wanted if sort == "oldest" else wanted[::-1])


def test_a_total_says_whether_it_is_one(mixed) -> None:
    whole = mixed.ask("GET", "/api/v1/tasks?q=train").body
    assert (whole["total"], whole["total_is_exact"], whole["next_cursor"]) == (6, True, None)
    part = mixed.ask("GET", "/api/v1/tasks?q=train&limit=2").body
    assert (part["total"], part["total_is_exact"]) == (2, False)
    assert mixed.ask("GET", "/api/v1/tasks?limit=2").body["total_is_exact"] is True


@pytest.mark.parametrize(
    "query", ["q=", "q=" + "x" * 101, "q=%0a", "node=%20", "gpu=", "sort=name", "q=a&q=b"]
)
def test_a_search_that_makes_no_sense_is_told_so(world, query) -> None:
    reply = world.ask("GET", f"/api/v1/tasks?{query}")
    assert (reply.status, reply.body["code"]) == (400, "invalid_query")
    assert reply.body["errors"][0]["path"] == query.partition("=")[0]


def test_words_in_other_scripts_and_with_quotes(world) -> None:
    world.submit(name="训练", command=["echo", 'say "hi"'])
    world.submit(name="Été")
    assert names(world, "q=%E8%AE%AD") == ["训练"]
    assert names(world, "q=%22hi%22") == ["训练"]
    assert names(world, "q=%C3%A9t%C3%A9") == ["Été"]
