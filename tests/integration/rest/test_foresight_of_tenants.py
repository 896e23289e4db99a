"""Predictions for a principal of some tenants: its own tasks by name, all others as counts."""

from __future__ import annotations

import json
from typing import Any

from rest_world import Reply, RestWorld


def new_token(world: RestWorld, **fields: Any) -> dict[str, Any]:
    asked = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"], **fields}
    return dict(world.ask("POST", "/api/v1/tokens", asked).body)


def ask(world: RestWorld, token: str, method: str, path: str, body: Any = None) -> Reply:
    return world.ask(method, path, body, {"Authorization": f"Bearer {token}"})


def test_why_counts_foreign_tasks_and_names_none(world) -> None:
    made = new_token(world)
    world.add_node("n1", 1)
    world.submit(tenant_id="rival", timeout_seconds=1000)
    waiting = [world.submit(tenant_id="rival", gpu_count=1) for _ in range(3)]
    own = world.submit(tenant_id="lab")
    why = ask(world, made["token"], "GET", f"/api/v1/tasks/{own}/why").body
    assert (why["position"], why["ahead"], why["ahead_total"]) == (4, [], 3)
    assert "3 tasks of other tenants come first" in why["summary"]
    assert not any(name in json.dumps(why) for name in waiting)
    later = world.submit(tenant_id="lab")
    why = ask(world, made["token"], "GET", f"/api/v1/tasks/{later}/why").body
    assert "1 own task and 3 tasks of other tenants come first" in why["summary"]
    assert why["ahead"] == [own]


def test_what_would_help_names_no_foreign_task(world) -> None:
    """The own task ends at once if another one is over: its name is not told, and its number is."""
    made = new_token(world)
    world.add_node("n1", 2)
    foreign = world.submit(tenant_id="rival", timeout_seconds=1000)
    mine = world.submit(tenant_id="lab", timeout_seconds=2000)
    waiting = world.submit(tenant_id="lab", gpu_count=2)
    why = ask(world, made["token"], "GET", f"/api/v1/tasks/{waiting}/why").body
    wait = next(each for each in why["sooner"] if each["change"] == "wait")
    assert wait["detail"] == f"when {mine} and 1 task of other tenants on node n1 are over"
    assert wait["facts"] == {"tasks": mine, "number": 2, "node": "n1"}
    every = world.ask("GET", f"/api/v1/tasks/{waiting}/why").body
    assert foreign in json.dumps(every["sooner"])


def test_a_predicted_submit_counts_the_tasks_of_others(world) -> None:
    made = new_token(world)
    world.add_node("n1", 1)
    world.submit(tenant_id="rival", timeout_seconds=1000)
    for tenant in ("rival", "lab"):
        world.submit(tenant_id=tenant, timeout_seconds=1000, priority=10)
    body = {"submit": {"command": "true", "priority": 60, "timeout_seconds": 1000}}
    told = ask(world, made["token"], "POST", "/api/v1/whatif", body).body
    assert ([each["task_id"] for each in told["delays"]], told["others"]["delays"]) == (["task-3"], 1)
    assert [each["task_id"] for each in told["waits"]] == ["task-4"]
    two = {"submit": {"task": {"command": "true", "priority": 5}, "count": 2}}
    waits = ask(world, made["token"], "POST", "/api/v1/whatif", two).body["waits"]
    assert [each["blockers"][-1]["detail"] for each in waits] == [
        "1 own task and 1 task of other tenants come first",
        "2 own tasks and 1 task of other tenants come first",
    ]
    every = world.ask("POST", "/api/v1/whatif", body).body
    assert ([each["task_id"] for each in every["delays"]], every["others"]) == (["task-2", "task-3"], None)


def test_only_a_reader_of_all_tenants_predicts_changes_of_the_cluster(world) -> None:
    world.add_node("n1", 1)
    made, wall = new_token(world), new_token(world, role="viewer", tenants=["*"])
    for change in (
        {"drain": "n1"},
        {"quota": {"online_percent": 0.5}},
        {"add_nodes": [{"gpus": 1, "model": "V100"}]},
    ):
        refused = ask(world, made["token"], "POST", "/api/v1/whatif", change)
        assert (refused.status, refused.body["code"]) == (403, "not_permitted")
        assert ask(world, wall["token"], "POST", "/api/v1/whatif", change).status == 200
    foreign = {"submit": {"command": "true", "tenant_id": "rival"}}
    refused = ask(world, made["token"], "POST", "/api/v1/whatif", foreign).body
    assert (refused["code"], refused["errors"][0]["path"]) == ("tenant_not_allowed", "submit.tenant_id")
