"""Dependencies, arrays, held tasks, priorities and gangs over real HTTP."""

from __future__ import annotations

import pytest

from dgpu.client import AsyncClient, Client
from dgpu.core.model.settings import Settings
from rest_world import RestWorld


def shown(world: RestWorld, task_id: str) -> dict:
    reply = world.ask("GET", f"/api/v1/tasks/{task_id}")
    assert reply.status == 200, reply
    return reply.body


def test_a_task_waits_for_another_and_says_so(world) -> None:
    world.add_node(gpus=2)
    first = world.submit()
    second = world.submit(after=[{"task_id": first, "when": "ok"}])
    waiting = shown(world, second)
    assert waiting["after"] == [{"task_id": first, "when": "ok"}]
    assert waiting["reason"] == "dependency"
    why = world.ask("GET", f"/api/v1/tasks/{second}/why").body
    assert why["blockers"][0]["code"] == "dependency"
    assert first in why["summary"]
    assert world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"][0]["reason"] == "dependency"
    world.finish_running()
    assert shown(world, second)["status"] == "running"


def test_a_dependency_that_fails_ends_those_behind_it(world) -> None:
    world.add_node(gpus=2)
    first = world.submit()
    second = world.submit(after=first)
    third = world.submit(after=[second])
    world.finish_running(exit_code=1)
    for task_id in (second, third):
        ended = shown(world, task_id)
        assert (ended["status"], ended["reason"]) == ("cancelled", "dependency_failed")
    kinds = world.ask("GET", f"/api/v1/tasks/{third}/events").body["events"]
    assert kinds[-1]["facts"]["reason"] == "dependency_failed"


@pytest.mark.parametrize("after", ["task-99", ["task-1", "task-99"], [{"task_id": "task-99", "when": "any"}]])
def test_an_unknown_dependency_is_refused_by_name(world, after) -> None:
    world.submit()
    before = world.digest()
    reply = world.ask("POST", "/api/v1/tasks", {"command": "true", "after": after})
    assert (reply.status, reply.body["code"]) == (422, "unknown_dependency")
    assert "task-99" in reply.body["detail"]
    assert reply.body["errors"][0]["path"] == "after"
    assert world.digest() == before


def test_a_dependency_on_a_task_out_of_memory_is_looked_up_in_the_history(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(keep_finished=0, keep_finished_ms=0)) as world:
        world.add_node(gpus=4)
        world.submit(name="good")
        world.finish_running()
        array = world.ask("POST", "/api/v1/tasks", {"command": "true", "array": "0-1"}).body["task_id"]
        world.finish_running(exit_code=1)
        world.forget()
        assert world.read(lambda state: not state.tasks)
        assert shown(world, world.submit(after="task-1"))["status"] == "running"
        refused = world.ask(
            "POST", "/api/v1/tasks", {"command": "true", "after": {"task_id": array, "when": "ok"}}
        )
        assert (refused.status, refused.body["code"]) == (422, "dependency_never_met")
        world.submit(after=[{"task_id": array, "when": "failed"}, "task-1"])
        past = shown(world, "task-3")
        assert (past["array_id"], past["array_index"], past["array_count"]) == ("task-2", 1, 2)


def test_an_array_is_submitted_at_once_and_keeps_to_its_limit(world) -> None:
    world.add_node(gpus=8)
    reply = world.ask("POST", "/api/v1/tasks", {"command": "true", "array": "3-12%2"})
    assert (reply.status, reply.body["task_id"], reply.body["count"]) == (201, "task-1", 10)
    page = world.ask("GET", "/api/v1/tasks?status=running").body
    assert [task["array_index"] for task in page["tasks"]] == [4, 3]
    waiting = shown(world, "task-3")
    assert (waiting["array_id"], waiting["array_limit"], waiting["reason"]) == ("task-1", 2, "array_limit")
    cancelled = world.ask("POST", "/api/v1/tasks/cancel", {"array": "task-1", "status": "pending"})
    assert cancelled.body == {"cancelled": 8}
    assert world.ask("POST", "/api/v1/tasks/cancel", {"array": "task-2"}).status == 404


def test_an_array_of_ten_million_is_refused_in_words(world) -> None:
    reply = world.ask("POST", "/api/v1/tasks", {"command": "true", "array": "0-9999999"})
    assert reply.status == 400
    assert reply.body["errors"][0]["path"] == "array"
    assert "at most 10,000 tasks" in reply.body["detail"]


def test_a_repeated_array_gives_the_first_answer_again(world) -> None:
    body, key = {"command": "true", "array": "0-4"}, {"Idempotency-Key": "k"}
    first = world.ask("POST", "/api/v1/tasks", body, key)
    again = world.ask("POST", "/api/v1/tasks", body, key)
    assert (again.status, again.body) == (first.status, first.body)
    assert again.body["count"] == 5


def test_hold_release_and_priority(world) -> None:
    world.submit(held=True)
    world.submit()
    assert shown(world, "task-1")["reason"] == "held"
    assert world.ask("POST", "/api/v1/tasks/2/hold").body["held"] is True
    assert world.ask("POST", "/api/v1/tasks/2/hold", {}).status == 200
    raised = world.ask("POST", "/api/v1/tasks/2/priority", {"priority": "high"}).body
    assert (raised["priority"], raised["pool"]) == (80, "batch")
    queue = world.ask("GET", "/api/v1/queue").body["queue"]
    assert [entry["task_id"] for entry in queue] == ["task-2", "task-1"]
    assert world.ask("GET", "/api/v1/tasks?priority=80").body["total"] == 1
    assert world.ask("GET", "/api/v1/tasks?priority=50").body["total"] == 1
    world.add_node(gpus=1)
    assert shown(world, "task-1")["status"] == "pending"
    assert world.ask("POST", "/api/v1/tasks/1/release").body["held"] is False
    assert shown(world, "task-1")["status"] == "running"
    refused = world.ask("POST", "/api/v1/tasks/1/hold")
    assert (refused.status, refused.body["code"]) == (409, "task_not_waiting")
    assert world.ask("POST", "/api/v1/tasks/9/hold").status == 404
    assert world.ask("POST", "/api/v1/tasks/2/priority", {"priority": 101}).status == 400


def test_a_priority_is_shown_as_it_was_given(world) -> None:
    """A number in the answer to a word surprises; programs that compare read `priority_value`."""
    world.submit(priority="HIGH")
    world.submit(priority=80)
    world.submit()

    def told() -> list[tuple[object, ...]]:
        queue = world.ask("GET", "/api/v1/queue").body["queue"]
        found = sorted((each["task_id"], each["priority"], each["priority_value"]) for each in queue)
        for task_id, *priority in found:
            assert [shown(world, task_id)[name] for name in ("priority", "priority_value")] == priority
        return [(word, value) for _, word, value in found]

    assert told() == [("high", 80), (80, 80), (50, 50)]
    for asked in ("high", "80"):
        assert world.ask("GET", f"/api/v1/tasks?priority={asked}").body["total"] == 2
    for task_id, asked in ((1, "low"), (2, "low"), (3, 33)):
        world.ask("POST", f"/api/v1/tasks/{task_id}/priority", {"priority": asked})
    assert told() == [("low", 10), (10, 10), (33, 33)]
    assert world.ask("POST", "/api/v1/tasks/1/priority", {"priority": 33}).body["priority"] == 33


def test_a_gang_shows_all_its_nodes_and_gpus(world) -> None:
    for name in ("n1", "n2"):
        world.add_node(name, gpus=2)
    task_id = world.submit(nodes=2, gpu_count=2)
    running = shown(world, task_id)
    assert (running["nodes"], running["node"], running["allocated_nodes"]) == (2, "n1", ["n1", "n2"])
    assert len(running["allocated_gpus"]) == 4
    assert world.ask("GET", "/api/v1/tasks?status=running").body["total"] == 1
    assert world.ask("GET", f"/api/v1/tasks/{task_id}/logs?rank=2").body["code"] == "unknown_rank"
    world.finish_running()
    assert shown(world, task_id)["status"] == "success"
    kinds = [event["type"] for event in world.ask("GET", f"/api/v1/tasks/{task_id}/events").body["events"]]
    assert kinds[:2] == ["task_submitted", "task_scheduled"]
    assert kinds[-1] == "task_finished"
    assert kinds.count("task_rank_ended") == 2
    refused = world.ask("POST", "/api/v1/tasks", {"command": "true", "nodes": 3})
    assert (refused.status, refused.body["errors"][0]["path"]) == (422, "nodes")


def test_the_sdk_knows_all_of_it(world) -> None:
    client = Client(world.url)
    answer = client.submit(command="true", array="0-2", held=True)
    assert answer.task_ids == ["task-1", "task-2", "task-3"]
    assert client.release("task-1").held is False
    assert client.set_priority("task-1", 90, array=True).priority == 90
    assert client.get("task-3").priority == 90
    assert client.hold(1, array=True).held
    client.release(1, array=True)
    client.submit(command="true", after=["task-1", {"task_id": "task-2", "when": "any"}])
    assert client.cancel_where(array="task-1") == 3


async def test_the_asynchronous_sdk_knows_it_too(world) -> None:
    async with AsyncClient(world.url) as client:
        await client.submit(command="true", held=True)
        assert (await client.release(1)).held is False
        assert (await client.hold(1)).held
        assert (await client.set_priority(1, "low")).priority == 10
