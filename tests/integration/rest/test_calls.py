"""The calls of the contract over real HTTP."""

from __future__ import annotations

import json
import re

import pytest

from dgpu.client import Client, Refused
from dgpu.core.commands import LoseNode
from dgpu.core.model.ids import NodeId
from dgpu.core.model.settings import Settings
from dgpu.journal.journal import Room
from rest_world import TOKEN, RestWorld

RFC3339 = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


def test_a_submitted_task_is_answered_with_201_and_shown(world) -> None:
    reply = world.ask(
        "POST", "/api/v1/tasks", {"command": ["echo", "hi"], "name": "first", "env": {"KEY": "s3cret"}}
    )
    assert reply.status == 201
    assert reply.body["task_id"] == "task-1"
    assert reply.body["status"] == "pending"
    assert RFC3339.match(reply.body["created_at"])
    for path in ("/api/v1/tasks/task-1", "/api/v1/tasks/1", "/api/tasks/task-1"):
        shown = world.ask("GET", path)
        assert shown.status == 200
        assert shown.body["name"] == "first"
        assert shown.body["command"] == ["echo", "hi"]
        assert shown.body["env"] == ["KEY"]
        assert "s3cret" not in shown.raw.decode()
        assert shown.body["reason"] == "no_nodes"
        assert shown.body["waiting"]
    contract = "task_id name tenant_id pool status priority gpu_count allocated_gpus node attempt created_at started_at"
    assert set(f"{contract} finished_at exit_code error reason".split()) <= shown.body.keys()


def test_values_of_the_environment_are_in_no_answer(world) -> None:
    world.submit(env={"KEY": "s3cret-value"})
    world.ask("DELETE", "/api/v1/tasks/1")
    for path in ("tasks", "tasks/1", "tasks/1/why", "tasks/1/events", "queue"):
        assert "s3cret-value" not in world.ask("GET", f"/api/v1/{path}").raw.decode()


def test_the_gpus_of_one_node(world) -> None:
    world.add_node("n1", gpus=2)
    world.add_node("n2", gpus=3)
    told = world.ask("GET", "/api/v1/gpus?node=n2").body
    assert (told["total"], told["idle"]) == (3, 3)
    assert {gpu["node"] for gpu in told["gpus"]} == {"n2"}
    unknown = world.ask("GET", "/api/v1/gpus?node=n3")
    assert (unknown.status, unknown.body["code"]) == (404, "unknown_node")


def test_a_task_runs_on_a_node_and_ends(world) -> None:
    world.add_node(gpus=2)
    task_id = world.submit(gpu_count=2)
    running = world.ask("GET", f"/api/v1/tasks/{task_id}").body
    assert (running["status"], running["node"], running["attempt"]) == ("running", "n1", 1)
    assert running["allocated_gpus"] == ["GPU-n1-0", "GPU-n1-1"]
    assert running["allocated_gpu_names"] == ["n1:0", "n1:1"]
    gpus = world.ask("GET", "/api/v1/gpus").body
    assert (gpus["total"], gpus["busy"], gpus["idle"]) == (2, 2, 0)
    assert gpus["gpus"][0]["tasks"] == [task_id]
    world.finish_running(exit_code=3)
    ended = world.ask("GET", f"/api/v1/tasks/{task_id}").body
    assert (ended["status"], ended["exit_code"]) == ("failed", 3)
    kinds = [event["type"] for event in world.ask("GET", f"/api/v1/tasks/{task_id}/events").body["events"]]
    assert kinds == ["task_submitted", "task_scheduled", "task_started", "task_finished"]


def test_events_of_a_task_are_complete_while_the_history_lags(world) -> None:
    world.add_node()
    world.submit()
    world.loop.call_soon_threadsafe(setattr, world.follower, "paused", True)
    world.read(lambda state: None)
    world.finish_running()
    kinds = [event["type"] for event in world.ask("GET", "/api/v1/tasks/1/events").body["events"]]
    assert kinds == ["task_submitted", "task_scheduled", "task_started", "task_finished"]


def test_why_names_blockers_with_numbers_and_who_is_ahead(world) -> None:
    world.add_node(gpus=1)
    for _ in range(4):
        world.submit()
    why = world.ask("GET", "/api/v1/tasks/task-4/why").body
    assert (why["status"], why["position"], why["ahead"]) == ("pending", 3, ["task-2", "task-3"])
    assert why["blockers"]
    assert all(blocker["code"] and blocker["detail"] for blocker in why["blockers"])
    assert why["expected_start"] is None
    assert why["sooner"] == []
    assert world.ask("GET", "/api/v1/tasks/99/why").status == 404


def test_the_queue_is_in_order_of_priority_and_age(world) -> None:
    for priority in ("low", "high", "normal", "high"):
        world.submit(priority=priority)
    queue = world.ask("GET", "/api/v1/queue?limit=3").body
    assert [entry["task_id"] for entry in queue["queue"]] == ["task-2", "task-4", "task-3"]
    assert [entry["position"] for entry in queue["queue"]] == [1, 2, 3]
    assert queue["total"] == 4


def test_the_queue_tells_tasks_without_a_name_apart(world) -> None:
    """In a list of bare ids, users cannot find their own tasks."""
    world.submit(command=["python", "train it.py"])
    world.submit(command=None, allocation=True)
    world.submit(command="echo $DGPU_ARRAY_INDEX", array="3-4", nodes=2)
    entries = world.ask("GET", "/api/v1/queue").body["queue"]
    assert [entry["command"] for entry in entries][:2] == [["python", "train it.py"], ""]
    assert [entry["allocation"] for entry in entries] == [False, True, False, False]
    assert [entry["array_index"] for entry in entries] == [None, None, 3, 4]
    assert [entry["nodes"] for entry in entries] == [1, 1, 2, 2]


def test_tasks_of_a_batch_wait_for_earlier_ones_of_it(world) -> None:
    world.submit()  # so that places in the batch are not ids
    tasks = [
        {"command": "a"},
        {"command": "b", "array": "0-1", "after": [{"entry": 0}]},
        {"command": "c", "after": [{"entry": 1, "when": "any"}, {"entry": 0}, "task-1"]},
    ]
    ids = world.ask("POST", "/api/v1/tasks/batch", {"tasks": tasks}).body["task_ids"]
    assert ids == ["task-2", "task-3", "task-4", "task-5"]
    after = [
        [
            (each["task_id"], each["when"])
            for each in world.ask("GET", f"/api/v1/tasks/{task_id}").body["after"]
        ]
        for task_id in ids
    ]
    first = [("task-2", "ok")]
    assert after == [[], first, first, [("task-1", "ok"), *first, ("task-3", "any"), ("task-4", "any")]]
    refused = world.ask("POST", "/api/v1/tasks", {"command": "a", "after": {"entry": 0}})
    assert (refused.status, refused.body["errors"][0]["path"]) == (400, "after")


def test_a_batch_is_all_or_nothing(world) -> None:
    before = world.digest()
    bad = world.ask("POST", "/api/v1/tasks/batch", {"tasks": [{"command": "a"}, {"command": ""}]})
    assert bad.status == 400
    assert bad.body["errors"][0]["path"] == "tasks[1].command"
    assert world.digest() == before
    good = world.ask("POST", "/api/v1/tasks/batch", {"tasks": [{"command": "a"}, {"command": "b"}]})
    assert (good.status, good.body) == (201, {"task_ids": ["task-1", "task-2"]})
    many = world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 10_000})
    assert many.status == 201
    assert (len(many.body["task_ids"]), many.body["task_ids"][-1]) == (10_000, "task-10002")


def test_what_can_never_run_is_refused_with_its_numbers(world) -> None:
    world.add_node(gpus=2)
    before = world.digest()
    reply = world.ask("POST", "/api/v1/tasks", {"command": "x", "gpu_count": 3})
    assert (reply.status, reply.body["code"]) == (422, "never_fits")
    assert reply.body["errors"][0]["path"] == "gpu_count"
    assert "3" in reply.body["detail"]
    assert "2" in reply.body["detail"]
    late = world.ask(
        "POST", "/api/v1/tasks/batch", {"tasks": [{"command": "x"}, {"command": "x", "gpu_model": "H9"}]}
    )
    assert late.body["errors"][0]["path"] == "tasks[1].gpu_model"
    assert world.digest() == before


def test_a_time_limit_beyond_the_maximum_is_refused(world) -> None:
    reply = world.ask("POST", "/api/v1/tasks", {"command": "x", "timeout_seconds": 1_000_000})
    assert (reply.status, reply.body["code"]) == (422, "timeout_too_long")


def test_the_same_key_gives_the_same_answer_and_one_task(world) -> None:
    key = {"Idempotency-Key": "abc"}
    first = world.ask("POST", "/api/v1/tasks", {"command": "x"}, key)
    again = world.ask("POST", "/api/v1/tasks", {"command": "x"}, key)
    assert (again.status, again.raw) == (201, first.raw)
    other = world.ask("POST", "/api/v1/tasks", {"command": "y"}, key)
    assert (other.status, other.body["code"]) == (422, "idempotency_key_reused")
    assert "abc" in other.body["detail"]
    tenant = world.ask("POST", "/api/v1/tasks", {"command": "x", "tenant_id": "lab"}, key)
    assert tenant.body["task_id"] == "task-2"
    batch = {"task": {"command": "x"}, "count": 3}
    one = world.ask("POST", "/api/v1/tasks/batch", batch, {"Idempotency-Key": "b"})
    two = world.ask("POST", "/api/v1/tasks/batch", batch, {"Idempotency-Key": "b"})
    assert one.raw == two.raw
    assert world.ask("GET", "/api/v1/tasks").body["total"] == 5


@pytest.mark.parametrize("key", ["", "x" * 201, "ü", "tab\there"])
def test_a_bad_idempotency_key_is_refused(world, key) -> None:
    reply = world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Idempotency-Key": key.encode("utf-8")})
    assert (reply.status, reply.body["code"]) == (400, "invalid_idempotency_key")


def test_cancel_of_waiting_running_ended_and_unknown(world) -> None:
    world.add_node(gpus=1)
    world.submit()
    world.submit()
    assert world.ask("DELETE", "/api/v1/tasks/task-2").body["status"] == "cancelled"
    assert world.ask("DELETE", "/api/v1/tasks/task-2").status == 200
    running = world.ask("DELETE", "/api/v1/tasks/task-1")
    assert (running.status, running.body["cancelling"]) == (200, True)
    world.finish_running()
    done = world.ask("GET", "/api/v1/tasks/task-1").body["status"]
    assert done == "cancelled"
    world.submit()
    world.finish_running()
    ended = world.ask("DELETE", "/api/v1/tasks/task-3")
    assert (ended.status, ended.body["code"]) == (409, "task_ended")
    assert world.ask("DELETE", "/api/v1/tasks/task-77").status == 404


def test_cancel_of_many_by_ids_and_by_filters(world) -> None:
    world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x"}, "count": 50})
    world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x", "tenant_id": "lab"}, "count": 50})
    cancel = "/api/v1/tasks/cancel"
    assert world.ask("POST", cancel, {"task_ids": ["task-1", "task-2", "task-1"]}).body == {"cancelled": 2}
    assert world.ask("POST", cancel, {"task_ids": ["task-1"]}).body == {"cancelled": 0}
    assert world.ask("POST", cancel, {"task_ids": ["task-3", "task-999"]}).status == 404
    assert world.ask("POST", cancel, {"tenant": "lab"}).body == {"cancelled": 50}
    assert world.ask("POST", cancel, {"status": "pending"}).body == {"cancelled": 48}
    assert world.ask("GET", "/api/v1/tasks?status=cancelled").body["total"] == 100


def test_the_workstation_form_holds_gpus_without_a_command(world) -> None:
    world.add_node(gpus=2)
    body = {"tenant_id": "lab", "name": "hold", "gpu_request": 1, "memory_mb": 8000, "priority": 50}
    reply = world.ask("POST", "/api/tasks", body)
    assert reply.status == 201
    shown = world.ask("GET", f"/api/tasks/{reply.body['task_id']}").body
    assert (shown["status"], shown["allocation"], shown["tenant_id"]) == ("running", True, "lab")
    assert world.ask("DELETE", f"/api/v1/tasks/{reply.body['task_id']}").body["status"] == "cancelled"
    assert world.ask("GET", "/api/v1/gpus").body["idle"] == 2


def test_nodes_are_drained_resumed_given_up_and_forgotten(world) -> None:
    world.add_node("n1", gpus=2)
    world.submit()
    node = "/api/v1/nodes/n1"
    drained = world.ask("POST", f"{node}/drain", {"reason": "fan"}).body
    assert (drained["status"], drained["drain_reason"], drained["tasks"]) == ("draining", "fan", ["task-1"])
    assert world.ask("POST", f"{node}/resume", {}).body["status"] == "ready"
    assert world.ask("POST", f"{node}/drain", raw=b"").status == 200
    assert world.ask("POST", f"{node}/lost", {}).body["code"] == "node_not_offline"
    assert world.ask("DELETE", node).body["code"] == "node_busy"
    world.execute(LoseNode(node_id=NodeId("n1"), reason="test"))
    assert world.ask("GET", "/api/v1/nodes").body["nodes"][0]["status"] == "offline"
    assert world.ask("POST", f"{node}/lost", {}).status == 200
    assert world.ask("GET", "/api/v1/tasks/1").body["status"] == "pending"
    assert world.ask("DELETE", node).body == {"id": "n1", "removed": True}
    assert world.ask("GET", "/api/v1/nodes").body == {"total": 0, "nodes": [], "isolation": "none"}
    for call in ("drain", "resume", "lost"):
        assert world.ask("POST", f"{node}/{call}", {}).status == 404
    assert world.ask("POST", f"{node}/drain", {"why": "x"}).status == 400


def test_a_full_disk_is_507_for_submits_and_reads_go_on(world) -> None:
    world.submit()
    world.journal.room = Room.RESERVE
    reply = world.ask("POST", "/api/v1/tasks", {"command": "x"})
    assert (reply.status, reply.body["code"]) == (507, "storage_full")
    assert world.ask("GET", "/api/v1/tasks").body["total"] == 1
    ready = world.ask("GET", "/ready")
    assert (ready.status, ready.body["storage_full"]) == (503, True)
    world.journal.room = Room.OK
    assert world.ask("POST", "/api/v1/tasks", {"command": "x"}).status == 201


def test_health_and_readiness(world) -> None:
    assert world.ask("GET", "/health").body == {"status": "ok", "version": "test"}
    ready = world.ask("GET", "/ready").body
    assert (ready["ready"], ready["role"], ready["epoch"]) == (True, "master", 1)


def test_beyond_the_bound_of_keys_a_submit_is_429_and_old_keys_still_answer(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(max_tenant_keys=2)) as world:
        first = [
            world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Idempotency-Key": key}) for key in "ab"
        ]
        refused = world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Idempotency-Key": "c"})
        assert (refused.status, refused.body["code"]) == (429, "too_many_keys")
        assert refused.headers["retry-after"] == "1"
        assert "'default'" in refused.body["detail"]
        again = world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Idempotency-Key": "a"})
        assert (again.status, again.body) == (201, first[0].body)
        assert world.ask("POST", "/api/v1/tasks", {"command": "x"}).status == 201


def test_a_client_repeats_a_submit_until_there_is_room_for_its_key_and_gives_up_in_the_end(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(max_tenant_keys=1)) as world:
        client = Client(world.url, token=TOKEN, retries=2)
        client.submit(command="x")
        with pytest.raises(Refused) as refused:
            client.submit(command="x")
        assert refused.value.code == "too_many_keys"
        assert world.runtime.meters.refused["too_many_keys"] == 3


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_do_not_wait_for_the_history(world, path: str) -> None:
    """A long list or report blocks the history. A probe that waits for it looks like a dead scheduler."""
    with world.history._lock:
        assert world.ask("GET", path).status == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_ask_for_the_head_alone(world, path) -> None:
    reply = world.ask("HEAD", path)
    assert (reply.status, reply.raw) == (200, b"")


def test_every_answer_has_an_id_and_safety_headers(world) -> None:
    seen = set()
    for method, path in (
        ("GET", "/health"),
        ("GET", "/nothing"),
        ("POST", "/api/v1/tasks"),
        ("GET", "/docs"),
    ):
        reply = world.ask(method, path, {} if method == "POST" else None)
        seen.add(reply.headers["x-request-id"])
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers
        if "problem" in reply.headers["content-type"]:
            assert reply.body["request_id"] == reply.headers["x-request-id"]
    assert len(seen) == 4


def test_the_description_names_every_call_and_the_pages_need_no_other_host(world) -> None:
    described = world.ask("GET", "/openapi.json").body
    calls = {(method.upper(), path) for path, item in described["paths"].items() for method in item}
    for call in (
        ("POST", "/api/v1/tasks"),
        ("POST", "/api/v1/tasks/batch"),
        ("POST", "/api/v1/tasks/cancel"),
        ("GET", "/api/v1/tasks/{task_id}/logs"),
        ("GET", "/api/v1/events"),
        ("DELETE", "/api/v1/nodes/{node_id}"),
        ("POST", "/api/tasks"),
    ):
        assert call in calls
    for item in described["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert operation["description"]
    assert "gpu_count" in described["components"]["schemas"]["Task"]["properties"]
    page = world.ask("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.body
    assert "https://" not in page.body
    assert f"curl {world.url}/api/v1/gpus" in page.body
    assert page.body.index("POST /api/v1/tasks<") < page.body.index("POST /api/tasks<")
    assert json.dumps(described)


@pytest.mark.parametrize("path", ["/metrics/x", "/api/v1/alert", "/schema", "/x"])
def test_calls_that_do_not_exist_are_404_problems(world, path) -> None:
    reply = world.ask("GET", path)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/tasks", {"GET", "POST"}),
        ("DELETE", "/api/v1/tasks", {"GET", "POST"}),
        ("GET", "/api/v1/tasks/batch", {"POST"}),
        ("GET", "/api/tasks", {"POST"}),
        ("POST", "/api/v1/tasks/1", {"GET", "DELETE"}),
        ("PATCH", "/health", {"GET"}),
        ("POST", "/api/v1/gpus", {"GET"}),
    ],
)
def test_a_wrong_method_is_405_and_says_what_is_allowed(world, method, path, allowed) -> None:
    reply = world.ask(method, path, {})
    assert (reply.status, reply.body["code"]) == (405, "method_not_allowed")
    assert allowed <= {name.strip() for name in reply.headers["allow"].split(",")}


def test_a_server_that_starts_again_knows_its_tasks(tmp_path) -> None:
    with RestWorld(tmp_path) as world:
        world.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "x", "priority": 90}, "count": 30})
        disk = world.journal.disk
    (tmp_path / "history.sqlite").unlink()
    with RestWorld(tmp_path, disk=disk, follower=False) as world:
        page = world.ask("GET", "/api/v1/tasks?priority=90&status=pending&limit=10").body
        assert page["total"] == 30
        assert page["tasks"][0]["task_id"] == "task-30"
        assert world.submit() == "task-31"
