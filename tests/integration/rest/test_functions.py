"""Function calls over REST, with a node that is told: submit, worker, slot, result."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
import pytest

from dgpu.wire.proto import agent_pb2 as pb
from function_agent import FunctionAgent
from rest_world import RestWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[RestWorld]:
    with RestWorld(tmp_path_factory.mktemp("functions")) as made:
        made.add_node("n1", gpus=2)
        made.agent = FunctionAgent(made)
        made.connect_agent("n1", made.agent)
        yield made


@pytest.fixture
def agent(world) -> Iterator[FunctionAgent]:
    usual = world.agent.answers
    yield world.agent
    world.agent.answers = usual


def call(world: RestWorld, **fields):
    reply = world.ask("POST", "/api/v1/tasks", {"entrypoint": "job:run", **fields})
    assert reply.status == 201, reply
    return reply.body["task_id"]


def result(world: RestWorld, task_id: str, wait: int = 20, **headers):
    return world.ask("GET", f"/api/v1/tasks/{task_id}/result?wait={wait}", headers=headers)


def test_a_call_gets_a_worker_and_returns_its_result(world, agent) -> None:
    task_id = call(world, args=[1], kwargs={"n": "x"})
    told = result(world, task_id)
    assert (told.status, told.body["status"], told.body["result"]) == (200, "success", [[1], {"n": "x"}])
    assert result(world, task_id, Accept="application/msgpack").raw == msgspec.msgpack.encode(
        [[1], {"n": "x"}]
    )
    shown = world.ask("GET", f"/api/v1/tasks/{task_id}").body
    assert (shown["entrypoint"], shown["gpu_count"]) == ("job:run", 0)
    assert shown["workdir"] == "", "it runs in that of its worker"
    (worker,) = world.ask("GET", "/api/v1/workers").body["workers"]
    assert (worker["node"], worker["status"], worker["queued"]) == ("n1", "warm", 0)
    as_task = world.ask("GET", f"/api/v1/tasks/{worker['task_id']}").body
    assert (as_task["worker_of"], as_task["command"]) == (worker["app"], ["python3", "-m", "dgpu.worker"])


def test_results_of_many_calls(world, agent) -> None:
    calls = [base64.b64encode(msgspec.msgpack.encode([[number], {}])).decode() for number in range(300)]
    reply = world.ask("POST", "/api/v1/tasks/batch", {"task": {"entrypoint": "job:run"}, "calls": calls})
    left = set(reply.body["task_ids"])
    seen = []
    while left:
        told = world.ask("POST", "/api/v1/tasks/results", {"task_ids": sorted(left), "wait": 20}).body
        assert told["results"]
        seen += [each["result"][0][0] for each in told["results"]]
        left -= {each["task_id"] for each in told["results"]}
    assert sorted(seen) == list(range(300))


def test_an_exception_comes_back_with_its_traceback(world, agent) -> None:
    agent.answers = lambda order: pb.Returned(
        lease_id=order.lease_id, outcome="raised", error="ValueError: no", traceback="Traceback ..."
    )
    told = result(world, call(world)).body
    assert (told["status"], told["reason"], told["traceback"]) == ("failed", "raised", "Traceback ...")
    assert "ValueError: no" in told["error"]


def test_a_call_that_runs_is_shown_with_its_progress_and_can_be_cancelled(world, agent) -> None:
    running: list[pb.Call] = []
    agent.answers = running.append
    task_id = call(world)
    assert result(world, task_id, wait=0).status == 202
    for _ in range(1_000):
        if running:
            break
        assert result(world, task_id, wait=0).status == 202
    agent.report(started=[pb.Started(lease_id=running[0].lease_id)])
    progress = pb.Progress(lease_id=running[0].lease_id, permille=400, text="epoch 2")
    agent.say(pb.FromAgent(workers=pb.Workers(progress=[progress])))
    for _ in range(1_000):
        shown = world.ask("GET", f"/api/v1/tasks/{task_id}").body
        if shown["progress"]:
            break
    assert (shown["progress"]["fraction"], shown["progress"]["text"]) == (0.4, "epoch 2")
    assert shown["worker"] == world.ask("GET", "/api/v1/workers").body["workers"][0]["task_id"]
    world.ask("DELETE", f"/api/v1/tasks/{task_id}")
    agent.report(returned=[pb.Returned(lease_id=running[0].lease_id, outcome="cancelled")])
    assert result(world, task_id).body["status"] == "cancelled"
    assert world.ask("GET", f"/api/v1/tasks/{task_id}").body["worker"] == shown["worker"]


def test_a_value_that_json_cannot_hold_is_msgpack_in_base64(world, agent) -> None:
    packed = msgspec.msgpack.encode(b"\x00\xff")
    agent.answers = lambda order: pb.Returned(
        lease_id=order.lease_id, outcome="returned", result=packed, encoding="msgpack"
    )
    told = result(world, call(world)).body
    assert (told["encoding"], base64.b64decode(told["result"])) == ("msgpack", packed)


def test_an_equal_key_submits_a_call_once(world, agent) -> None:
    body = {"entrypoint": "job:run", "args": [7]}
    key = {"Idempotency-Key": "once"}
    first, second = (world.ask("POST", "/api/v1/tasks", body, key).body["task_id"] for _ in range(2))
    assert first == second


def test_a_call_is_submitted_again_while_its_app_is_known(world, agent) -> None:
    task_id = call(world, args=[8])
    assert result(world, task_id).body["status"] == "success"
    again = world.ask("POST", f"/api/v1/tasks/{task_id}/retry", {})
    assert again.status == 201
    assert result(world, again.body["task_id"]).body["result"] == [[8], {}]


def test_a_task_with_a_command_has_no_result(world) -> None:
    reply = result(world, world.submit(gpu_count=0))
    assert (reply.status, reply.body["code"]) == (409, "no_result")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"task_ids": []}, "task_ids"),
        ({"task_ids": ["x"]}, "task_ids[0]"),
        ({"task_ids": ["task-1"], "wait": 61}, "wait"),
    ],
)
def test_wrong_questions_are_named(world, body, path) -> None:
    reply = world.ask("POST", "/api/v1/tasks/results", body)
    assert (reply.status, reply.body["errors"][0]["path"]) == (400, path)
