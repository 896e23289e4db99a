"""Quota and tenants over real HTTP, and through both clients."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.client import AsyncClient, Client, Refused
from dgpu.service.views.events import event_stream_text


def put(world, path: str, body: object):
    return world.ask("PUT", path, body)


def test_the_quota_is_shown_by_pool_and_tenant(world) -> None:
    world.add_node(gpus=10)
    world.submit(gpu_count=2, tenant_id="lab")
    shown = world.ask("GET", "/api/v1/quota").body
    assert shown["total_gpus"] == 10
    assert shown["online"] == {"quota": 7, "used": 0, "available": 8, "borrowed": 0, "waiting": 0}
    assert shown["batch"] == {"quota": 3, "used": 2, "available": 8, "borrowed": 0, "waiting": 0}
    assert [(each["tenant_id"], each["gpus_used"], each["running"]) for each in shown["tenants"]] == [
        ("lab", 2, 1)
    ]


def test_the_quota_is_changed_live_and_survives_what_it_must(world) -> None:
    world.add_node(gpus=10)
    changed = put(world, "/api/v1/quota", {"online_percent": 0.65, "mode": "strict"})
    assert changed.status == 200
    assert (changed.body["online"]["quota"], changed.body["batch"]["quota"]) == (7, 3)  # 6.5 and 3.5: a tie
    for _ in range(4):
        world.submit()
    assert world.ask("GET", "/api/v1/quota").body["batch"]["used"] == 3
    why = world.ask("GET", "/api/v1/tasks/4/why").body
    assert [blocker["code"] for blocker in why["blockers"]] == ["pool_quota"]
    assert why["blockers"][0]["quota"] == 3
    refused = put(world, "/api/v1/quota", {"online_percent": 0.8})
    assert (refused.status, refused.body["code"]) == (409, "quota_in_use")
    assert "uses 3 GPUs and would get 2" in refused.body["detail"]


def test_a_dry_run_tells_who_would_start_wait_or_drain_and_changes_nothing(world) -> None:
    world.add_node(gpus=10)
    put(world, "/api/v1/quota", {"mode": "strict"})
    for _ in range(5):
        world.submit()
    before = world.ask("GET", "/api/v1/quota").body
    effect = put(world, "/api/v1/quota?dry_run=true", {"online_percent": 0.6}).body
    assert (effect["starts"], effect["waits"], effect["drains"]) == (["task-4"], [], [])
    assert effect["rejected"] is None
    assert effect["batch"]["quota"] == 4
    effect = put(world, "/api/v1/quota?dry_run=true", {"online_percent": 0.9}).body
    assert effect["drains"] == ["task-2", "task-3"]
    assert effect["rejected"]["code"] == "quota_in_use"
    assert world.ask("GET", "/api/v1/quota").body == before


def test_a_dry_run_shows_the_pools_as_the_change_would(world) -> None:
    world.add_node(gpus=10)
    for _ in range(5):
        world.submit(gpu_count=2)
    world.submit()
    for change in ({"online_percent": 0.6}, {"online_percent": 1}):
        effect = put(world, "/api/v1/quota?dry_run=true", change).body
        changed = put(world, "/api/v1/quota", change).body
        assert [effect[pool] for pool in ("online", "batch")] == [
            changed[pool] for pool in ("online", "batch")
        ]
    assert (changed["batch"]["borrowed"], changed["batch"]["waiting"]) == (10, 1)


def test_a_dry_run_counts_what_may_be_borrowed(world) -> None:
    world.add_node(gpus=10)
    borrowing = put(world, "/api/v1/quota?dry_run=true", {"online_percent": 0.6}).body
    assert (borrowing["online"]["available"], borrowing["batch"]["available"]) == (10, 10)
    strict = put(world, "/api/v1/quota?dry_run=true", {"online_percent": 0.6, "mode": "strict"}).body
    assert (strict["online"]["available"], strict["batch"]["available"]) == (6, 4)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"online_percent": 1.5}, "online_percent"),
        ({"online_percent": -0.1}, "online_percent"),
        ({"online_percent": "much"}, "online_percent"),
        ({"online_percent": True}, "online_percent"),
        ({"mode": "loose"}, "mode"),
        ({"reclaim": 1}, "reclaim"),
        ({"batch_percent": 0.5}, "batch_percent"),
    ],
)
def test_a_quota_that_makes_no_sense_is_named(world, body: dict, path: str) -> None:
    reply = put(world, "/api/v1/quota", body)
    assert reply.status == 400
    assert reply.body["errors"][0]["path"] == path


@pytest.mark.parametrize("body", [{}, [], None, 7])
def test_an_empty_change_is_refused(world, body: object) -> None:
    assert put(world, "/api/v1/quota", body).status == 400


def test_tenants_are_set_up_shown_changed_and_removed(world) -> None:
    created = world.ask(
        "POST", "/api/v1/tenants", {"id": "vision", "max_gpus": 2, "weight": 2, "max_priority": "high"}
    )
    assert created.status == 201
    assert (created.body["max_gpus"], created.body["weight"], created.body["max_priority"]) == (2, 2, 80)
    assert created.body["pools"] == ["online", "batch"]
    assert world.ask("POST", "/api/v1/tenants", {"id": "vision"}).body["code"] == "tenant_exists"
    changed = put(world, "/api/v1/tenants/vision", {"guaranteed_gpus": 1, "gpu_hours_per_month": 0.5})
    assert (changed.body["max_gpus"], changed.body["guaranteed_gpus"]) == (None, 1)
    assert put(world, "/api/v1/tenants/speech", {}).body["weight"] == 1
    assert [each["id"] for each in world.ask("GET", "/api/v1/tenants").body["tenants"]] == [
        "speech",
        "vision",
    ]
    world.submit(tenant_id="vision")
    assert world.ask("DELETE", "/api/v1/tenants/vision").body["code"] == "tenant_busy"
    assert world.ask("GET", "/api/v1/tenants/vision").body["use"]["waiting"] == 1
    assert world.ask("DELETE", "/api/v1/tenants/speech").body == {"id": "speech", "removed": True}
    for method in ("GET", "DELETE"):
        gone = world.ask(method, "/api/v1/tenants/speech")
        assert (gone.status, gone.body["code"]) == (404, "unknown_tenant")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "id"),
        ({"id": ""}, "id"),
        ({"id": "../x"}, "id"),
        ({"id": "a", "weight": 0}, "weight"),
        ({"id": "a", "weight": 1e9}, "weight"),
        ({"id": "a", "max_gpus": -1}, "max_gpus"),
        ({"id": "a", "max_gpus": 1.5}, "max_gpus"),
        ({"id": "a", "max_gpus": 1, "guaranteed_gpus": 2}, "guaranteed_gpus"),
        ({"id": "a", "pools": []}, "pools"),
        ({"id": "a", "pools": ["fast"]}, "pools"),
        ({"id": "a", "max_priority": 101}, "max_priority"),
        ({"id": "a", "gpu_hours_per_month": -1}, "gpu_hours_per_month"),
        ({"id": "a", "color": "red"}, "color"),
    ],
)
def test_a_tenant_that_makes_no_sense_is_named(world, body: dict, path: str) -> None:
    reply = world.ask("POST", "/api/v1/tenants", body)
    assert reply.status == 400
    assert reply.body["errors"][0]["path"] == path
    assert world.ask("GET", "/api/v1/tenants").body["total"] == 0


def test_what_a_tenant_may_never_have_is_refused_with_the_field(world) -> None:
    world.add_node(gpus=4)
    put(world, "/api/v1/tenants/a", {"max_gpus": 1, "max_priority": 60, "pools": ["batch"], "max_waiting": 1})
    for fields, status, code, path in (
        ({"gpu_count": 2}, 422, "exceeds_quota", "gpu_count"),
        ({"priority": 61}, 422, "priority_too_high", "priority"),
        ({"pool": "online"}, 422, "pool_not_allowed", "pool"),
        ({"tenant_id": "nobody"}, 422, "unknown_tenant", "tenant_id"),
    ):
        reply = world.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "a", **fields})
        assert (reply.status, reply.body["code"]) == (status, code)
        assert reply.body["errors"][0]["path"] == path
    world.submit(tenant_id="a")
    world.submit(tenant_id="a")
    full = world.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "a"})
    assert (full.status, full.body["code"]) == (429, "tenant_queue_full")
    assert world.ask("GET", "/api/v1/tasks/2").body["reason"] == "tenant_gpus"


def test_a_refusal_by_quota_names_the_command_that_changes_it(world) -> None:
    world.add_node(gpus=4)
    put(world, "/api/v1/tenants/a", {"max_gpus": 1})
    refused = world.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "a", "gpu_count": 2})
    assert "dgpu tenant set a --max-gpus N" in refused.body["detail"]
    put(world, "/api/v1/tenants/a", {"max_gpus": 4})
    put(world, "/api/v1/quota", {"mode": "strict"})
    refused = world.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "a", "gpu_count": 4})
    assert (refused.status, refused.body["code"]) == (422, "exceeds_quota")
    assert "dgpu quota set --online PART or --mode borrow" in refused.body["detail"]
    assert "quota.online_percent" in refused.body["detail"]


def test_both_clients_know_the_calls(world) -> None:
    world.add_node(gpus=10)
    with Client(world.url) as client:
        assert client.set_tenant("a", max_gpus=3, weight=2).use.share == 1
        assert client.create_tenant("b").weight == 1
        assert client.quota().online.quota == 7
        assert client.try_quota(online_percent=0.5).batch.quota == 5
        assert client.set_quota(online_percent=0.5).batch.quota == 5
        with pytest.raises(Refused):
            client.create_tenant("b")
        client.remove_tenant("b")

    async def later() -> None:
        async with AsyncClient(world.url) as client:
            assert [each.id for each in await client.tenants()] == ["a"]
            assert (await client.tenant("a")).max_gpus == 3
            assert (await client.quota()).mode == "borrow"
            assert (await client.try_quota(mode="strict")).rejected is None
            await client.set_tenant("c")
            await client.create_tenant("d")
            await client.remove_tenant("c")
            assert (await client.set_quota(reclaim="stop")).reclaim == "stop"

    asyncio.run(later())


def test_the_list_says_why_by_shape(world) -> None:
    world.add_node(gpus=4)
    put(world, "/api/v1/tenants/a", {"max_gpus": 1})
    world.submit(tenant_id="a")
    world.submit(tenant_id="a")
    listed = world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"]
    assert [(task["reason"], task["waiting"]) for task in listed] == [
        ("tenant_gpus", "tenant a holds 1 of at most 1 GPU, it asks for 1")
    ]


def test_the_journal_tells_of_it(world) -> None:
    put(world, "/api/v1/quota", {"online_percent": 0.5})
    put(world, "/api/v1/tenants/a", {"max_gpus": 1})
    told = event_stream_text_of(world)
    assert '"type":"quota_updated","online_percent":0.5,"mode":"borrow","reclaim":"wait"' in told
    assert '"type":"tenant_set","tenant_id":"a"' in told


def event_stream_text_of(world) -> str:
    return "".join(event_stream_text(group).decode() for group in world.views.recent)
