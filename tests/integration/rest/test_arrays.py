"""The id of an array means the array in every call, and `46_3` means its task with index 3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dgpu.client import Client
from dgpu.client.errors import NotFound
from dgpu.core.commands import ReportFinished
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from rest_world import Listening, RestWorld

TASKS = "/api/v1/tasks"


def shown(world: RestWorld, task_id: str) -> dict:
    reply = world.ask("GET", f"{TASKS}/{task_id}")
    assert reply.status == 200, reply
    return reply.body


def numbers(world: RestWorld, array_id: str) -> dict[str, int]:
    array = shown(world, array_id)["array"]
    return {name: value for name, value in array.items() if name != "failures" and value}


def end(world: RestWorld, codes: dict[int, int]) -> None:
    """Ends running tasks of an array: exit codes by index."""
    leases = world.read(
        lambda state: {state.tasks[lease.task_id].array_index: lease.id for lease in state.leases.values()}
    )
    for index, code in codes.items():
        world.execute(ReportFinished(lease_id=leases[index], outcome=Outcome.EXITED, exit_code=code))


def test_the_first_task_comes_with_the_progress_of_its_array(world) -> None:
    world.add_node(gpus=3)
    world.submit()
    array = world.submit(array="5-8")
    assert numbers(world, array) == {"count": 4, "pending": 2, "running": 2}
    end(world, {6: 3})
    assert numbers(world, array) == {"count": 4, "pending": 1, "running": 2, "failed": 1}
    failed = {"task_id": "task-3", "index": 6, "status": "failed", "exit_code": 3, "reason": "exit_code"}
    assert shown(world, array)["array"]["failures"] == [failed]
    assert shown(world, "task-3")["array"] is None, "not the first"


def test_an_element_is_named_by_array_and_index(world) -> None:
    array = world.submit(array="9,5-7", name="sweep")
    for name, number in (("1_9", 1), ("task-1_5", 2), ("1_7", 4)):
        task = shown(world, name)
        assert (task["task_id"], task["array"]) == (f"task-{number}", None)
        assert task["element_id"] == f"{array}_{name.partition('_')[2]}"
    for name in ("1_8", "2_5", "1_", "1_x", "1_-5", "99_0", "1_5_5", "1_99999999999"):
        reply = world.ask("GET", f"{TASKS}/{name}")
        assert (reply.status, reply.body["code"]) == (404, "unknown_task"), name
    assert world.ask("GET", f"{TASKS}/1_6/events").body["task_id"] == "task-3"
    assert world.ask("GET", f"{TASKS}/1_6/why").body["task_id"] == "task-3"


def test_a_cancel_means_the_array_and_an_element_only_itself(world) -> None:
    world.add_node(gpus=2)
    array = world.submit(array="0-4")
    other = world.submit(array="0-2")
    assert world.ask("DELETE", f"{TASKS}/{array}_0").body["cancelling"]
    assert numbers(world, array) == {"count": 5, "pending": 3, "running": 2}
    cancelled = world.ask("POST", f"{TASKS}/cancel", {"task_ids": [f"{array}_2", other, f"{other}_1"]})
    assert cancelled.body == {"cancelled": 4}
    assert numbers(world, other) == {"count": 3, "cancelled": 3}
    assert world.ask("POST", f"{TASKS}/cancel", {"task_ids": [f"{array}_9"]}).status == 404
    assert world.ask("DELETE", f"{TASKS}/{array}").body["array"]["cancelled"] == 3
    assert world.ask("DELETE", f"{TASKS}/{array}").status == 200, "again"


def test_a_cancel_of_an_ended_array_is_refused(world) -> None:
    world.add_node(gpus=2)
    done = world.submit(array="0-1")
    end(world, {0: 0, 1: 0})
    assert world.ask("DELETE", f"{TASKS}/{done}").status == 409
    assert world.ask("POST", f"{TASKS}/cancel", {"task_ids": [done]}).body == {"cancelled": 0}


def test_hold_release_and_priority_mean_the_array(world) -> None:
    array = world.submit(array="0-3")
    assert world.ask("POST", f"{TASKS}/{array}/hold", {}).body["array"]["pending"] == 4
    assert [shown(world, f"{array}_{index}")["held"] for index in range(4)] == [True] * 4
    assert world.ask("POST", f"{TASKS}/{array}_0/release", {}).body["array"] is None
    assert [shown(world, f"{array}_{index}")["held"] for index in range(4)] == [False, True, True, True]
    world.ask("POST", f"{TASKS}/{array}/priority", {"priority": 70})
    world.ask("POST", f"{TASKS}/{array}_0/priority", {"priority": 20})
    assert [shown(world, f"{array}_{index}")["priority"] for index in range(4)] == [20, 70, 70, 70]


def test_failed_tasks_are_submitted_again_as_a_new_array_while_others_run(world) -> None:
    world.add_node(gpus=6)
    array = world.submit(array="10-15%3", name="sweep", env={"SECRET": "x"})
    end(world, {10: 1, 11: 0, 12: 2})
    none = world.ask("POST", f"{TASKS}/{world.submit(array='0-1')}/retry", {"failed": True})
    assert (none.status, none.body["code"]) == (409, "nothing_failed")
    whole = world.ask("POST", f"{TASKS}/{array}/retry", {})
    assert (whole.status, whole.body["code"]) == (409, "not_ended")
    reply = world.ask("POST", f"{TASKS}/{array}/retry", {"failed": True})
    assert (reply.status, reply.body["count"]) == (201, 2), reply
    again = reply.body["task_id"]
    task = shown(world, f"{again}_12")
    assert (task["array_id"], task["array_count"], task["name"], task["env"]) == (
        again,
        2,
        "sweep",
        ["SECRET"],
    )
    alone = world.ask("POST", f"{TASKS}/{array}_12/retry", {}).body
    assert (alone["count"], shown(world, alone["task_id"])["array_index"]) == (1, 12)
    for body in ({"failed": 1}, {"fail": True}, []):
        assert world.ask("POST", f"{TASKS}/{array}/retry", body).status == 400


def test_a_whole_array_is_submitted_again_with_its_limit(world) -> None:
    world.add_node(gpus=9)
    array = world.submit(array="1,3-4%2")
    while world.finish_running():
        pass
    again = world.ask("POST", f"{TASKS}/{array}/retry", {}).body
    task = shown(world, again["task_id"])
    assert (again["count"], task["array_limit"], task["array"]["count"]) == (3, 2, 3)
    assert shown(world, f"{again['task_id']}_4")["task_id"] == "task-6"


def test_a_task_may_wait_for_one_element(world) -> None:
    world.add_node(gpus=3)
    array = world.submit(array="0-2")
    behind_one = world.submit(after=f"{array}_0", gpu_count=0)
    behind_all = world.submit(after=[array], gpu_count=0)
    assert [each["task_id"] for each in shown(world, behind_one)["after"]] == ["task-1"]
    assert len(shown(world, behind_all)["after"]) == 3
    end(world, {0: 0})
    assert shown(world, behind_one)["status"] == "running"
    assert shown(world, behind_all)["status"] == "pending"
    refused = world.ask("POST", TASKS, {"command": "true", "after": f"{array}_7"})
    assert (refused.status, refused.body["code"]) == (422, "unknown_dependency")
    assert f"{array}_7" in refused.body["detail"]
    wish = {"submit": {"command": "true", "after": f"{array}_7"}}
    assert world.ask("POST", "/api/v1/whatif", wish).status == 422


def test_an_array_that_left_the_memory_is_known_by_the_history(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(keep_finished=0, keep_finished_ms=0)) as world:
        world.add_node(gpus=2)
        array = world.submit(array="0-2")
        end(world, {0: 0, 1: 4})
        world.forget()
        assert numbers(world, array) == {"count": 3, "running": 1, "success": 1, "failed": 1}
        assert shown(world, f"{array}_1")["exit_code"] == 4
        end(world, {2: 0})
        world.forget()
        assert world.read(lambda state: len(state.tasks)) == 0
        assert numbers(world, array) == {"count": 3, "success": 2, "failed": 1}
        with Client(world.url) as client:
            ended = client.wait(array)[0].array
            assert ended is not None
            assert [each.index for each in ended.failures] == [1]
            with pytest.raises(NotFound):
                client.get(f"{array}_3")


def test_a_client_waits_for_all_tasks_of_an_array(world) -> None:
    world.add_node(gpus=2)
    with Client(world.url) as client:
        array = client.submit(command="true", array="0-1").task_id
        end(world, {0: 0})
        with pytest.raises(Exception, match="1 of its tasks run"):
            client.wait(array, timeout_seconds=0)
        end(world, {1: 0})
        assert client.wait(array)[0].array is not None


def test_a_foreign_element_is_like_one_that_never_was(world) -> None:
    asked_for = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"]}
    token = world.ask("POST", "/api/v1/tokens", asked_for).body["token"]
    foreign = world.submit(tenant_id="rival", array="0-3")

    def asked(name: str) -> list[tuple[int, str]]:
        calls: list[tuple[str, str, Any]] = [
            ("GET", f"/api/v1/tasks/{name}", None),
            ("DELETE", f"/api/v1/tasks/{name}", None),
            ("GET", f"/api/v1/tasks/{name}/logs", None),
            ("POST", f"/api/v1/tasks/{name}/retry", {}),
            ("POST", "/api/v1/tasks/cancel", {"task_ids": [name]}),
            ("POST", "/api/v1/tasks", {"command": "true", "after": name}),
        ]
        replies = [world.ask(*call, {"Authorization": f"Bearer {token}"}) for call in calls]
        return [(reply.status, reply.body["detail"].replace("task-999", foreign)) for reply in replies]

    told = asked(f"{foreign}_2")
    assert told == asked("task-999_2")
    assert [status for status, _ in told] == [404, 404, 404, 404, 404, 422]
    assert world.ask("GET", "/api/v1/tasks?status=pending").body["total"] == 4


def test_tasks_of_a_grid_have_their_values_in_name_command_and_environment(tmp_path) -> None:
    asked = {"command": "train --lr {lr} --seed {seed}", "name": "sweep", "env": {"K": "v"}}
    with RestWorld(tmp_path, settings=Settings(keep_finished=0, keep_finished_ms=0)) as world:
        world.add_node(gpus=3)
        stream = Listening()
        world.connect_agent(stream=stream)
        reply = world.ask("POST", TASKS, {**asked, "grid": {"lr": [0.1, 0.01], "seed": "7-8"}, "array": "%3"})
        assert (reply.status, reply.body["count"]) == (201, 4)
        task = shown(world, "1_2")
        assert (task["name"], task["command"]) == ("sweep lr=0.01 seed=7", "train --lr 0.01 --seed 7")
        assert (task["grid"], task["array_limit"]) == ({"lr": "0.01", "seed": "7"}, 3)
        orders = {order.task_id: order for order in stream.starts}
        detail = json.loads(orders[2].detail)
        assert (detail["command"], detail["env"], detail.get("grid")) == (
            "train --lr 0.1 --seed 8",
            {"K": "v"},
            None,
        )
        assert {"lr": "0.1", "seed": "8", "DGPU_GRID_SEED": "8"}.items() <= dict(orders[2].env).items()
        end(world, {0: 0, 1: 0, 2: 1})
        world.forget()
        assert {**shown(world, "1_2"), "status": ""}["name"] == task["name"], "from the history"
        assert shown(world, "1_2")["command"] == task["command"]
        rows = world.ask("GET", f"{TASKS}?name=sweep").body["tasks"]
        assert min(row["name"] for row in rows) == "sweep lr=0.01 seed=7"
        assert len(rows) == 4
        assert world.ask("GET", "/api/v1/queue").status == 200


def test_failed_tasks_of_a_grid_keep_their_values(world) -> None:
    world.add_node(gpus=4)
    array = world.submit(name="sweep", grid={"lr": "0.1,0.01", "seed": "0-1"})
    end(world, {0: 0, 1: 1, 2: 0, 3: 1})
    again = world.ask("POST", f"{TASKS}/{array}/retry", {"failed": True}).body["task_id"]
    assert [shown(world, f"{again}_{index}")["name"] for index in (1, 3)] == [
        "sweep lr=0.1 seed=1",
        "sweep lr=0.01 seed=1",
    ]
