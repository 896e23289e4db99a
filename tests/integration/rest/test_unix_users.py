"""Submits for a tenant that has no Unix user on the nodes: refused at once, because no node can start its tasks."""

from __future__ import annotations

import pytest

from dgpu.service.rest.backend import RestOptions
from dgpu.wire.isolation import Isolation
from rest_world import RestWorld


@pytest.fixture
def mapped(tmp_path):
    options = RestOptions(version="test", isolation=Isolation(users={"vision": "alice"}))
    with RestWorld(tmp_path, options=options) as world:
        world.add_node("n1", gpus=2)
        yield world


def test_a_submit_without_a_unix_user_is_refused_with_the_remedy(mapped) -> None:
    task = {"command": "true", "tenant_id": "speech"}
    good = {"command": "true", "tenant_id": "vision"}
    for path, body, field, tenant in (
        ("/api/v1/tasks", task, "tenant_id", "speech"),
        ("/api/tasks", task, "tenant_id", "speech"),
        ("/api/v1/tasks", {"command": "true"}, "tenant_id", "default"),
        ("/api/v1/tasks/batch", {"tasks": [good, task]}, "tasks[1].tenant_id", "speech"),
        ("/api/v1/whatif", {"submit": task}, "submit.tenant_id", "speech"),
    ):
        reply = mapped.ask("POST", path, body)
        assert reply.status == 409, (path, reply)
        assert reply.body["code"] == "no_unix_user", (path, reply)
        assert [each["path"] for each in reply.body["errors"]] == [field], reply
        assert f"add `{tenant}: USER` to isolation.users" in reply.body["detail"]
        assert "alice" not in reply.body["detail"]
    assert mapped.ask("GET", "/api/v1/tasks").body["total"] == 0


def test_tenants_with_a_unix_user_and_allocations_are_accepted(mapped) -> None:
    assert mapped.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "vision"}).status == 201
    assert mapped.ask("POST", "/api/v1/tasks", {"allocation": True, "tenant_id": "speech"}).status == 201
