"""API tokens over HTTP: created, used, revoked; and what their principals may do."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

import pytest

from dgpu.core.model.settings import Settings
from dgpu.journal.memory import MemoryDisk
from dgpu.service.access.principal import owner
from dgpu.service.access.table import Action
from dgpu.service.rest import tokens
from dgpu.service.rest.backend import Backend, RestOptions
from rest_world import Reply, RestWorld


def new_token(world: RestWorld, *, by: str = "", **fields: Any) -> dict[str, Any]:
    asked = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"], **fields}
    reply = world.ask("POST", "/api/v1/tokens", asked, bearer(by) if by else None)
    assert reply.status == 201, reply
    return dict(reply.body)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def ask(world: RestWorld, token: str, method: str, path: str, body: Any = None) -> Reply:
    return world.ask(method, path, body, bearer(token))


def test_a_secret_is_shown_once(world) -> None:
    made = new_token(world)
    listed = world.ask("GET", "/api/v1/tokens")
    assert made["token"].encode() not in listed.raw
    (shown,) = listed.body["tokens"]
    assert (shown["id"], shown["user"], shown["role"], shown["tenants"]) == (
        made["id"],
        "ann",
        "user",
        ["lab"],
    )
    assert shown["expires_at"] == made["expires_at"] is not None
    assert shown["revoked"] is False
    journal = bytes(world.journal.disk.segment)
    assert made["id"].encode() in journal
    assert made["token"].split("_", 2)[2].encode() not in journal


def test_who_am_i(world) -> None:
    made = new_token(world)
    told = ask(world, made["token"], "GET", "/api/v1/whoami").body
    actions = told.pop("actions")
    assert told == {
        "user": "ann",
        "role": "user",
        "tenants": ["lab"],
        "source": "token",
        "token_id": made["id"],
        "isolation": "none",
        "scopes": [],
    }
    assert {"task.submit", "task.change", "self.read"} < set(actions)
    assert not {"token.change", "cluster.change", "tenant.change"} & set(actions)
    own = world.ask("GET", "/api/v1/whoami").body
    assert (own["role"], own["tenants"], own["source"]) == ("admin", ["*"], "uid")


def test_a_revoked_token_is_refused_on_the_same_connection(world) -> None:
    made = new_token(world)
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
    with contextlib.closing(connection):
        for expected in (200, 401):
            connection.request("GET", "/api/v1/whoami", headers=bearer(made["token"]))
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == expected
            assert world.ask("DELETE", f"/api/v1/tokens/{made['id']}").status == 200
    assert answer["code"] == "token_revoked"
    assert world.ask("GET", "/api/v1/tokens").body["tokens"][0]["revoked"] is True


def test_the_answer_to_a_revocation_waits_for_the_book(world) -> None:
    """Answers leave before those who follow the journal are told of the group."""
    made = new_token(world)
    book, secret = world.access.tokens, made["token"].encode()

    async def revoke() -> object:
        backend = Backend(world.runtime, world.views, world.history, world.output, world.options, tokens=book)
        await tokens.revoke_token.fn(backend, owner("root", "uid"), made["id"])
        return book.verify(secret)

    assert world.run(revoke()) == "revoked"


def test_an_expired_token_is_refused(world) -> None:
    made = new_token(world, expires_in_seconds=60)
    book = world.access.tokens
    now = book.now_wall_ms()
    book._wall_ms = lambda: now + 61_000
    assert ask(world, made["token"], "GET", "/api/v1/whoami").body["code"] == "token_expired"


def test_a_restart_keeps_tokens(tmp_path) -> None:
    disk = MemoryDisk()
    with RestWorld(tmp_path, disk=disk) as world:
        kept, revoked = new_token(world), new_token(world)
        world.ask("DELETE", f"/api/v1/tokens/{revoked['id']}")
    with RestWorld(tmp_path, disk=disk) as world:
        assert ask(world, kept["token"], "GET", "/api/v1/whoami").body["user"] == "ann"
        assert ask(world, revoked["token"], "GET", "/api/v1/whoami").status == 401


def test_a_submit_without_a_tenant_goes_to_the_first_one_of_the_token(world) -> None:
    made = new_token(world, tenants=["lab", "second"])
    task_id = ask(world, made["token"], "POST", "/api/v1/tasks", {"command": "true"}).body["task_id"]
    task = world.ask("GET", f"/api/v1/tasks/{task_id}").body
    assert (task["tenant_id"], task["labels"]) == ("lab", {"user": "ann"})


def test_no_client_chooses_another_user(world) -> None:
    made = new_token(world)
    spec = {"command": "true", "labels": {"user": "boss", "run": "7"}}
    task_id = ask(world, made["token"], "POST", "/api/v1/tasks", spec).body["task_id"]
    assert world.ask("GET", f"/api/v1/tasks/{task_id}").body["labels"] == {"user": "ann", "run": "7"}


def test_a_refused_tenant_is_named_with_the_allowed_ones(world) -> None:
    made = new_token(world, tenants=["lab", "second"])
    batch = {"tasks": [{"command": "true"}, {"command": "true", "tenant_id": "rival"}]}
    reply = ask(world, made["token"], "POST", "/api/v1/tasks/batch", batch)
    assert (reply.status, reply.body["code"]) == (403, "tenant_not_allowed")
    assert reply.body["detail"] == "tenant_id is 'rival'; ann may submit for: lab, second."
    assert reply.body["errors"][0]["path"] == "tasks[1].tenant_id"
    assert world.ask("GET", "/api/v1/tasks").body["total"] == 0


def test_a_dependency_on_a_foreign_task_is_like_one_on_an_unknown_task(world) -> None:
    """Otherwise the refusal would tell how the other task ended."""
    made = new_token(world)
    foreign = world.submit(tenant_id="rival")
    world.ask("DELETE", f"/api/v1/tasks/{foreign}")
    replies = [
        ask(world, made["token"], "POST", "/api/v1/tasks", {"command": "true", "after": [name]})
        for name in (foreign, "task-999")
    ]
    assert [reply.status for reply in replies] == [422, 422]
    told = [reply.body["detail"].replace(foreign, "task-999") for reply in replies]
    assert told[0] == told[1]


def test_a_cancel_by_filters_takes_only_own_tasks(world) -> None:
    made = new_token(world, tenants=["lab", "second"])
    for tenant in ("lab", "second", "rival"):
        world.submit(tenant_id=tenant)
    cancel = {"status": "pending"}
    assert ask(world, made["token"], "POST", "/api/v1/tasks/cancel", cancel).body == {"cancelled": 2}
    rival = {"tenant": "rival"}
    assert ask(world, made["token"], "POST", "/api/v1/tasks/cancel", rival).body == {"cancelled": 0}
    assert world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"][0]["tenant_id"] == "rival"


def test_a_cancel_by_name_takes_only_own_tasks(world) -> None:
    made = new_token(world, tenants=["lab", "second"])
    for tenant in ("lab", "second", "rival"):
        world.submit(tenant_id=tenant, name="sweep")
    for wanted, number in (({"tenant": "rival"}, 0), ({"tenant": "second"}, 1), ({}, 1)):
        body = {"name": "sweep", **wanted}
        reply = ask(world, made["token"], "POST", "/api/v1/tasks/cancel", body)
        assert reply.body == {"cancelled": number}
    assert world.ask("GET", "/api/v1/tasks?status=pending").body["tasks"][0]["tenant_id"] == "rival"


@pytest.mark.parametrize(
    "query", ["", "?status=cancelled", "?q=e", "?sort=oldest", "?tenant=rival", "?node=n1"]
)
def test_lists_and_searches_count_only_own_tasks(world, query: str) -> None:
    """From memory and from the history."""
    made = new_token(world)
    for tenant in ("lab", "rival", "lab"):
        world.ask("DELETE", f"/api/v1/tasks/{world.submit(tenant_id=tenant, command='echo e')}")
    world.forget()
    for tenant in ("lab", "rival"):
        world.submit(tenant_id=tenant, command="echo e")
    page = ask(world, made["token"], "GET", f"/api/v1/tasks{query}").body
    assert {task["tenant_id"] for task in page["tasks"]} <= {"lab"}
    assert page["total"] == len(page["tasks"])


def test_a_cancel_of_a_foreign_array_is_like_one_of_an_unknown_array(world) -> None:
    made = new_token(world)
    foreign = world.submit(tenant_id="rival", array="0-3")
    replies = [
        ask(world, made["token"], "POST", "/api/v1/tasks/cancel", {"array": name})
        for name in (foreign, "task-999")
    ]
    assert [reply.status for reply in replies] == [404, 404]
    assert replies[0].body["detail"].replace(foreign, "task-999") == replies[1].body["detail"]
    assert world.ask("GET", "/api/v1/tasks?status=pending").body["total"] == 4
    own = world.submit(tenant_id="lab", array="0-2")
    assert ask(world, made["token"], "POST", "/api/v1/tasks/cancel", {"array": own}).body == {"cancelled": 3}


def test_a_retry_is_of_the_user_who_asks_for_it(world) -> None:
    made = new_token(world)
    world.add_node("n1", 1)
    first = world.submit(tenant_id="lab", labels={"user": "bob", "run": "7"})
    world.finish_running()
    again = ask(world, made["token"], "POST", f"/api/v1/tasks/{first}/retry", {}).body["task_id"]
    assert world.ask("GET", f"/api/v1/tasks/{again}").body["labels"] == {"user": "ann", "run": "7"}


def views_of(world: RestWorld, token: str, task_id: str) -> str:
    own = f"/api/v1/tasks/{task_id}"
    paths = (
        own,
        f"{own}/why",
        f"{own}/events",
        "/api/v1/tasks",
        "/api/v1/queue",
        "/api/v1/gpus",
        "/api/v1/nodes",
    )
    return "\n".join(ask(world, token, "GET", path).raw.decode() for path in paths)


def test_a_guarantee_of_another_tenant_is_told_without_its_name(world) -> None:
    made = new_token(world)
    world.add_node("n1", 2)
    world.ask("POST", "/api/v1/tenants", {"id": "rival", "guaranteed_gpus": 2})
    world.ask("POST", "/api/v1/tenants", {"id": "lab"})
    world.submit(tenant_id="lab", gpu_count=1)
    world.submit(tenant_id="rival", gpu_count=2)
    own = world.submit(tenant_id="lab", gpu_count=1)
    assert "the guarantees of rival" in world.ask("GET", f"/api/v1/tasks/{own}/why").raw.decode()
    told = views_of(world, made["token"], own)
    assert "the guarantees of other tenants" in told
    assert "rival" not in told


def test_a_reservation_of_another_tenant_is_told_without_its_task(tmp_path) -> None:
    with RestWorld(tmp_path, settings=Settings(reservations=1)) as world:
        made = new_token(world)
        world.add_node("n1", 2)
        first = world.submit(tenant_id="rival", gpu_count=1, timeout_seconds=1000)
        large = world.submit(tenant_id="rival", gpu_count=2, priority=90, pool="batch")
        own = world.submit(tenant_id="lab", gpu_count=1, timeout_seconds=5000)
        assert f"it would delay {large}" in world.ask("GET", f"/api/v1/tasks/{own}/why").raw.decode()
        told = views_of(world, made["token"], own)
        assert "it would delay a task that has a reservation" in told
        assert first not in told
        assert large not in told


def test_the_queue_tells_the_true_place_among_anonymous_others(world) -> None:
    made = new_token(world)
    for tenant in ("rival", "rival", "lab"):
        world.submit(tenant_id=tenant)
    page = ask(world, made["token"], "GET", "/api/v1/queue").body
    assert [(entry["position"], entry["tenant_id"]) for entry in page["queue"]] == [(3, "lab")]
    assert page["total"] == 3


def test_a_tenant_admin_gives_away_no_more_than_it_has(world) -> None:
    admin = new_token(world, role="tenant-admin")["token"]
    made = new_token(world, by=admin, role="viewer", user="bob")
    new_token(world, tenants=["rival"])
    assert [each["user"] for each in ask(world, admin, "GET", "/api/v1/tokens").body["tokens"]] == [
        "ann",
        "bob",
    ]
    for fields, path in (
        ({"role": "tenant-admin", "tenants": ["lab"]}, "role"),
        ({"role": "admin"}, "role"),
        ({"role": "user", "tenants": ["lab", "rival"]}, "tenants"),
        ({"role": "viewer", "tenants": ["*"]}, "tenants"),
    ):
        reply = ask(world, admin, "POST", "/api/v1/tokens", {"name": "x", **fields})
        assert (reply.status, reply.body["errors"][0]["path"]) == (403, path), reply
    assert ask(world, admin, "DELETE", f"/api/v1/tokens/{made['id']}").status == 200


def test_a_tenant_admin_revokes_no_other_tenant_admin(world) -> None:
    one, other = (new_token(world, role="tenant-admin", user=name) for name in ("ann", "bob"))
    assert ask(world, one["token"], "DELETE", f"/api/v1/tokens/{other['id']}").status == 403
    assert ask(world, one["token"], "DELETE", f"/api/v1/tokens/{one['id']}").status == 200


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"role": "root"}, "role"),
        ({"role": "agent"}, "role"),
        ({"role": {}}, "role"),
        ({"tenants": []}, "tenants"),
        ({"tenants": ["*"]}, "tenants"),
        ({"tenants": ["a", "*"]}, "tenants"),
        ({"tenants": "lab"}, "tenants"),
        ({"tenants": None}, "tenants"),
        ({"role": "operator", "tenants": ["lab"]}, "tenants"),
        ({"expires_in_seconds": -1}, "expires_in_seconds"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["task.fly"]}, "scopes"),
        ({"scopes": "task.read"}, "scopes"),
        ({"scopes": [7]}, "scopes"),
        ({"expires": "30d"}, "expires"),
    ],
)
def test_a_wrong_field_is_named(world, fields: dict[str, Any], path: str) -> None:
    asked = {"name": "n", "role": "user", "tenants": ["lab"], **fields}
    reply = world.ask("POST", "/api/v1/tokens", asked)
    assert (reply.status, [error["path"] for error in reply.body["errors"]]) == (400, [path])


def test_scopes_narrow_the_role(world) -> None:
    """A token for CI submits and looks; it cancels nothing, also of its own tenant."""
    made = new_token(world, scopes=["task.submit", "task.read"])
    assert made["scopes"] == ["task.submit", "task.read"]
    submitted = ask(world, made["token"], "POST", "/api/v1/tasks", {"command": "true"})
    assert submitted.status == 201
    task = f"/api/v1/tasks/{submitted.body['task_id']}"
    assert ask(world, made["token"], "GET", task).status == 200
    for method, path, body in (
        ("DELETE", task, None),
        ("GET", f"{task}/output", None),
        ("GET", "/api/v1/tasks", None),
        ("POST", "/api/v1/tasks/cancel", {"task_ids": [submitted.body["task_id"]]}),
        ("GET", "/api/v1/nodes", None),
        ("POST", "/api/v1/session/code", {}),
    ):
        refused = ask(world, made["token"], method, path, body)
        assert (refused.status, refused.body["code"]) == (403, "not_permitted"), path
        assert "task.submit, task.read only" in refused.body["detail"]
    told = ask(world, made["token"], "GET", "/api/v1/whoami").body
    assert told["scopes"] == ["task.submit", "task.read"]
    assert told["actions"] == ["task.submit", "task.read", "self.read"]
    (shown,) = world.ask("GET", "/api/v1/tokens").body["tokens"]
    assert shown["scopes"] == ["task.submit", "task.read"]


def test_scopes_do_not_widen_the_role(world) -> None:
    made = new_token(world, role="viewer", scopes=["task.submit", "cluster.change"])
    assert ask(world, made["token"], "POST", "/api/v1/tasks", {"command": "true"}).status == 403


@pytest.mark.parametrize("asked", [None, ["task.read"], ["token.change", "task.read"]])
def test_a_narrow_token_creates_no_wider_one(world, asked) -> None:
    by = new_token(world, role="tenant-admin", scopes=["token.change", "task.submit"])["token"]
    wider = {"name": "x", "tenants": ["lab"]} | ({} if asked is None else {"scopes": asked})
    refused = ask(world, by, "POST", "/api/v1/tokens", wider)
    assert (refused.status, refused.body["errors"][0]["path"]) == (403, "scopes")
    assert new_token(world, by=by, scopes=["task.submit"])["scopes"] == ["task.submit"]


def test_scopes_are_kept_over_a_restart(tmp_path) -> None:
    disk = MemoryDisk()
    with RestWorld(tmp_path, disk=disk) as world:
        made = new_token(world, scopes=["task.read"])
    with RestWorld(tmp_path, disk=disk) as world:
        assert ask(world, made["token"], "GET", "/api/v1/whoami").body["scopes"] == ["task.read"]


def test_without_authentication_everybody_is_an_administrator(tmp_path) -> None:
    with RestWorld(tmp_path, access_mode="none") as world:
        told = world.ask("GET", "/api/v1/whoami").body
        assert (told["user"], told["role"], told["source"]) == ("anyone", "admin", "open")
        assert set(told["actions"]) == set(Action)
        assert told["isolation"] == "open"


def test_no_secret_is_logged(world, capfd) -> None:
    made = new_token(world)
    ask(world, made["token"], "GET", "/api/v1/whoami")
    ask(world, made["token"][:-2], "GET", "/api/v1/whoami")
    ask(world, made["token"], "DELETE", "/api/v1/nodes/n1")
    told = capfd.readouterr()
    assert made["token"][18:-2] not in told.out + told.err


def test_a_second_user_needs_isolation_to_be_set(tmp_path) -> None:
    """Tasks of two users as one Unix user are no secret kept: the administrator must have said so."""
    with RestWorld(tmp_path, options=RestOptions(version="test")) as world:
        asked = {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"]}
        reply = world.ask("POST", "/api/v1/tokens", asked)
        assert (reply.status, reply.body["code"]) == (409, "isolation_needed")
        assert "isolation.users" in reply.body["detail"]
        assert world.ask("GET", "/api/v1/tokens").body["total"] == 0
        assert world.ask("GET", "/api/v1/whoami").body["isolation"] == ""
        own = world.ask("POST", "/api/v1/tokens", {"name": "ci", "role": "user", "tenants": ["lab"]})
        assert own.status == 201
