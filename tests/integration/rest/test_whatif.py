"""The calls why and what-if, over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.client import AsyncClient, BadRequest, Client
from rest_world import TOKEN, RestWorld


def ask(world: RestWorld, **change):
    return world.ask("POST", "/api/v1/whatif", change)


def test_a_submit_is_tried_without_being_made(world) -> None:
    world.add_node(gpus=2)
    before = world.digest()
    told = ask(world, submit={"command": "true", "gpu_count": 2})
    assert told.status == 200
    assert told.body["starts"] == [{"task_id": "task-1", "nodes": ["n1"], "new": True}]
    assert (told.body["delays"], told.body["stops"], told.body["rejected"]) == ([], [], None)
    assert told.body["journal_index"] > 0
    assert world.digest() == before
    assert world.ask("GET", "/api/v1/tasks").body["total"] == 0


def test_what_would_be_refused_carries_the_problem_of_the_real_call(world) -> None:
    world.add_node(gpus=2)
    told = ask(world, submit={"task": {"command": "true", "gpu_count": 3}})
    real = world.ask("POST", "/api/v1/tasks", {"command": "true", "gpu_count": 3})
    assert told.status == 200
    assert told.body["rejected"]["code"] == real.body["code"] == "never_fits"
    assert told.body["rejected"]["detail"] == real.body["detail"]


def test_every_change_has_an_answer(world) -> None:
    world.add_node(gpus=1)
    world.submit(timeout_seconds=60)
    world.submit(timeout_seconds=60)
    assert [each["task_id"] for each in ask(world, drain="n1").body["delays"]] == ["task-2"]
    assert [each["task_id"] for each in ask(world, lose="n1").body["stops"]] == ["task-1"]
    added = ask(world, add_nodes=[{"gpus": 1, "model": "V100"}]).body
    assert [each["task_id"] for each in added["starts"]] == ["task-2"]
    assert ask(world, quota={"online_percent": 0.5}).body["rejected"] is None
    assert ask(world, drain="n9").body["rejected"]["status"] == 404


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"submit": {"command": "true", "gpu_count": -1}}, "submit.gpu_count"),
        ({"quota": {"online_percent": 2}}, "quota.online_percent"),
        ({"drain": ["n1"]}, "drain"),
        ({"add_nodes": [{"gpus": "8", "model": "A100"}]}, "add_nodes[0].gpus"),
        ({"reboot": "n1"}, "reboot"),
    ],
)
def test_bad_input_names_its_field(world, change, path) -> None:
    before = world.digest()
    told = ask(world, **change)
    assert (told.status, [error["path"] for error in told.body["errors"]]) == (400, [path])
    assert world.digest() == before


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"null", b"[1]", b'{"drain": NaN}', b'{"drain":"a","drain":"b"}', b"7"]
)
def test_what_is_no_question_is_refused(world, raw) -> None:
    assert world.ask("POST", "/api/v1/whatif", raw=raw).status == 400


def test_a_large_question_without_a_follower_is_put_off(world) -> None:
    world.add_node(gpus=1)
    world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "true"}, "count": 200})
    told = ask(world, drain="n1")
    assert (told.status, told.body["code"], told.headers["retry-after"]) == (503, "foresight_away", "1")


def test_why_says_what_would_start_it_and_that_the_start_is_unknown(world) -> None:
    world.add_node(gpus=2)
    world.submit(gpu_count=1)
    task_id = world.submit(gpu_count=2)
    told = world.ask("GET", f"/api/v1/tasks/{task_id}/why").body
    assert [change["change"] for change in told["sooner"]] == ["gpu_count", "wait"]
    assert told["sooner"][0] == {
        "change": "gpu_count",
        "detail": "with 1 GPU instead of 2",
        "facts": {"gpu_count": 1, "instead_of": 2},
    }
    assert told["nearest"] == {"node": "n1", "lacks": {"gpus": 1}}
    assert told["expected_start"] is None
    assert told["sooner_known"] is True
    fewer = world.submit(gpu_count=1)
    assert world.ask("GET", f"/api/v1/tasks/{fewer}").body["status"] == "running"


def test_why_without_anybody_to_ask_says_that_more_may_exist(world) -> None:
    world.add_node(gpus=1)
    world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "true"}, "count": 2_000})
    told = world.ask("GET", "/api/v1/tasks/task-1999/why").body
    assert (told["sooner"], told["sooner_known"]) == ([], False)
    assert told["blockers"]


def test_the_sdk_asks_too(world) -> None:
    world.add_node(gpus=1)
    with Client(world.url, token=TOKEN) as client:
        told = client.whatif({"submit": {"command": "true"}})
        assert [(start.task_id, start.new) for start in told.starts] == [("task-1", True)]
        assert client.whatif({"submit": {"command": "true", "gpu_count": 9}}).rejected.code == "never_fits"
        with pytest.raises(BadRequest):
            client.whatif({"submit": {}})

    async def ask_async():
        async with AsyncClient(world.url, token=TOKEN) as client:
            return await client.whatif({"drain": "n1"})

    assert asyncio.run(ask_async()).rejected is None
