"""quota and tenant: what they send, and what they show."""

from __future__ import annotations

import json

import pytest

from .conftest import problem

POOL = {"quota": 7, "used": 2.5, "available": 4.5, "borrowed": 0, "waiting": 1}
USE = {
    "tenant_id": "vision",
    "gpus_used": 2.5,
    "running": 3,
    "waiting": 4,
    "share": 0.5,
    "recent_gpu_hours": 1.25,
}
QUOTA = {
    "total_gpus": 10,
    "online_percent": 0.7,
    "mode": "borrow",
    "reclaim": "stop",
    "online": POOL,
    "batch": {**POOL, "quota": 3, "borrowed": 1},
    "tenants": [USE],
}
TENANT = {"id": "vision", "max_gpus": 16, "weight": 2, "pools": ["batch"], "use": USE}


@pytest.fixture
def call(dgpu, server):
    def run(*arguments):
        return dgpu("--server", server.url, *arguments)

    return run


def test_quota_shows_pools_and_tenants(call, server):
    server.answers["GET", "/api/v1/quota"] = (200, QUOTA)
    code, out, err = call("quota")
    assert code == 0
    assert out.splitlines()[0].split() == ["POOL", "QUOTA", "USED", "AVAILABLE", "BORROWED", "WAITING"]
    assert out.splitlines()[1].split() == ["online", "7", "2.5", "4.5", "1"]
    assert "vision" in out
    assert "10 schedulable GPUs; 0.7 online, borrow, reclaim: stop" in err
    code, out, _ = call("quota", "--json")
    assert json.loads(out)["batch"]["borrowed"] == 1


def test_quota_set_sends_only_what_was_said(call, server):
    server.answers["PUT", "/api/v1/quota"] = (200, QUOTA)
    assert call("quota", "set", "--online", "0.65")[0] == 0
    assert server.sent("PUT", "/api/v1/quota") == [{"online_percent": 0.65}]
    assert call("quota", "set")[0] == 2


def test_a_dry_run_tells_and_a_refused_one_says_so(call, server):
    effect = {"online": POOL, "batch": POOL, "starts": ["task-4"], "waits": ["task-5", "task-6"]}
    server.answers["PUT", "/api/v1/quota"] = (200, effect)
    code, out, err = call("quota", "set", "--online", "0.6", "--dry-run")
    assert code == 0
    assert "1 task would start: task-4" in out
    assert "2 tasks would wait for quota: task-5, task-6" in out
    assert "Nothing was changed." in err
    refused = {**effect, "drains": ["task-1"], "rejected": problem(409, "quota_in_use", "Too much runs.")}
    server.answers["PUT", "/api/v1/quota"] = (200, refused)
    code, out, err = call("quota", "set", "--online", "0.9", "--dry-run")
    assert code == 6
    assert "1 task beyond the new quota: task-1" in out
    assert "Too much runs." in err


def test_tenants_are_listed_and_shown(call, server):
    server.answers["GET", "/api/v1/tenants"] = (200, {"total": 1, "tenants": [TENANT]})
    server.answers["GET", "/api/v1/tenants/vision"] = (200, TENANT)
    code, out, _ = call("tenant", "list")
    assert code == 0
    assert out.splitlines()[1].split()[:4] == ["vision", "2.5/16", "2", "3"]
    assert call("tenant")[1] == out
    code, out, _ = call("tenant", "show", "vision")
    assert "2 (50% of all)" in out
    assert call("tenant", "list", "-o", "name")[1] == "vision\n"


def test_setting_changes_what_is_said_and_keeps_the_rest(call, server):
    server.answers["GET", "/api/v1/tenants/vision"] = (200, TENANT)
    server.answers["PUT", "/api/v1/tenants/vision"] = (200, TENANT)
    code, _, err = call(
        "tenant", "set", "vision", "--guaranteed", "4", "--max-mem", "64G", "--max-priority", "high",
        "--gpu-hours", "100", "--no-limit", "max-gpus",
    )  # fmt: skip
    assert code == 0, err
    assert server.sent("PUT", "/api/v1/tenants/vision") == [
        {
            "guaranteed_gpus": 4,
            "weight": 2,
            "pools": ["batch"],
            "max_gpu_memory_mb": 65_536,
            "max_priority": "high",
            "gpu_hours_per_month": 100,
        }
    ]
    assert call("tenant", "set", "vision", "--no-limit", "colour")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--weight", "nan"),
        ("--gpu-hours", "inf"),
        ("--max-gpus", "3", "--no-limit", "max-gpus"),
        ("--max-mem", "8G", "--no-limit", "max-mem"),
    ],
)
def test_no_limit_is_taken_away_by_mistake(call, server, words):
    server.answers["GET", "/api/v1/tenants/vision"] = (200, TENANT)
    server.answers["PUT", "/api/v1/tenants/vision"] = (200, TENANT)
    assert call("tenant", "set", "vision", *words)[0] == 2
    assert server.sent("PUT", "/api/v1/tenants/vision") == []


def test_a_tenant_that_is_new_is_set_up(call, server):
    server.answers["PUT", "/api/v1/tenants/new"] = (200, {**TENANT, "id": "new"})
    assert call("tenant", "set", "new", "--pools", "online,batch")[0] == 0
    assert server.sent("PUT", "/api/v1/tenants/new") == [{"pools": ["online", "batch"]}]


def test_removing_says_what_was_removed(call, server):
    server.answers["DELETE", "/api/v1/tenants/vision"] = (200, {"id": "vision", "removed": True})
    assert call("tenant", "remove", "vision")[:2] == (0, "vision\n")
    assert call("tenant", "remove", "nobody")[0] == 5
