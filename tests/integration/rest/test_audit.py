"""The audit log over real HTTP: every change and every refusal, with its principal, and no secret."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dgpu.service.alerts.options import AlertOptions
from rest_world import TOKEN, Reply, RestWorld


class Site:
    def __init__(self, world: RestWorld) -> None:
        self.world = world
        world.add_node("n1", gpus=1)
        for tenant in ("mine", "rival"):
            world.ask("POST", "/api/v1/tenants", {"id": tenant})
        self.user = self.token("ann", "user", "mine")
        self.chief = self.token("eve", "tenant-admin", "mine")
        self.rival = self.token("bob", "user", "rival")

    def token(self, user: str, role: str, tenant: str) -> str:
        asked = {"name": "t", "user": user, "role": role, "tenants": [tenant]}
        return str(self.world.ask("POST", "/api/v1/tokens", asked).body["token"])

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        return self.world.ask(method, path, body, sent)

    def entries(self, query: str = "", token: str = "") -> list[dict[str, Any]]:
        reply = self.ask("GET", f"/api/v1/audit?limit=1000{query}", token=token)
        assert reply.status == 200, reply
        return list(reply.body["entries"])

    def of(self, request_id: str) -> dict[str, Any]:
        (found,) = [each for each in self.entries() if each["request_id"] == request_id]
        return found


@pytest.fixture
def site(tmp_path):
    with RestWorld(tmp_path, alerts=AlertOptions()) as world:
        yield Site(world)


def test_a_submit_is_one_entry_with_the_whole_principal(site) -> None:
    task = {"command": "echo hush-hush", "env": {"KEY": "hush-hush"}}
    site.ask("POST", "/api/v1/tasks/batch", {"tasks": [task] * 3}, token=site.user, X_Request_Id="one")
    found = site.of("one")
    assert (found["user"], found["role"], found["source"]) == ("ann", "user", "token")
    assert site.user.startswith(f"dgpu_{found['token_id']}_")
    assert (found["action"], found["call"]) == ("task.submit", "POST /api/v1/tasks/batch")
    assert (found["subject"], found["tasks"], found["tenant_id"]) == ("task-1", 3, "mine")
    assert (found["result"], found["status"], found["code"], found["count"]) == ("done", None, None, 1)
    assert found["origin"].startswith("uid ")
    assert "hush" not in json.dumps(found)


CHANGES = [
    ("DELETE", "/api/v1/tasks/2", None, "task.change", "task-2"),
    ("POST", "/api/v1/tasks/cancel", {"status": "pending"}, "task.change", None),
    ("POST", "/api/v1/tasks/2/hold", {}, "task.change", "task-2"),
    ("POST", "/api/v1/tasks/2/priority", {"priority": 70}, "task.change", "task-2"),
    ("PUT", "/api/v1/quota", {"online_percent": 0.5}, "tenant.change", None),
    ("PUT", "/api/v1/tenants/mine", {}, "tenant.change", "mine"),
    ("POST", "/api/v1/nodes/n1/drain", {}, "cluster.change", "n1"),
    ("POST", "/api/v1/alerts/silences", {"rule": "agent_offline", "seconds": 60}, "alert.change", None),
    ("POST", "/api/v1/session/code", {}, "session.open", None),
    ("DELETE", "/api/v1/session", None, "self.read", None),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "subject"), CHANGES, ids=lambda value: str(value)[:40]
)
def test_every_accepted_change_is_recorded_once(site, method, path, body, action, subject) -> None:
    """Also those that are no command of the core: sessions and silences."""
    for _ in range(2):  # the second one waits
        site.world.submit(tenant_id="mine")
    reply = site.ask(method, path, body, X_Request_Id="change")
    assert reply.status < 300, reply
    found = site.of("change")
    assert (found["action"], found["result"], found["role"]) == (action, "done", "admin")
    if subject is not None:
        assert found["subject"] == subject


def test_a_login_and_its_code_are_recorded_without_the_code(site) -> None:
    code = site.ask("POST", "/api/v1/session/code", {}).body["code"]
    assert site.ask("POST", "/api/v1/session", {"code": code}, X_Request_Id="in").status == 204
    assert site.ask("POST", "/api/v1/session", {"code": code}, X_Request_Id="again").status == 403
    assert (site.of("in")["action"], site.of("in")["result"]) == ("session.open", "done")
    assert site.of("again")["code"] == "wrong_code"
    assert code not in json.dumps(site.entries())


def test_attempts_on_another_tenants_task_are_refused_and_recorded(site) -> None:
    task = site.world.submit(tenant_id="rival")
    for number, (method, suffix, body) in enumerate(
        [
            ("DELETE", "", None),
            ("POST", "/hold", {}),
            ("POST", "/priority", {"priority": 99}),
            ("GET", "/output", None),
            ("GET", "/files/secret.txt", None),
            ("GET", "", None),
        ]
    ):
        path = f"/api/v1/tasks/{task}{suffix}"
        assert site.ask(method, path, body, token=site.user, X_Request_Id=f"try-{number}").status == 404
    refused = site.entries("&user=ann&result=refused")
    assert {each["code"] for each in refused} == {"unknown_task"}
    assert {each["tenant_id"] for each in refused} == {"rival"}
    assert sum(each["count"] for each in refused) == 6
    assert {each["action"] for each in refused} == {"task.change", "task.output", "task.read"}
    assert "secret.txt" not in json.dumps(refused)


def test_other_refusals(site) -> None:
    site.ask("POST", "/api/v1/nodes/n1/drain", {}, token=site.user, X_Request_Id="rights")
    site.ask(
        "POST",
        "/api/v1/tasks",
        {"command": "id", "tenant_id": "rival"},
        token=site.user,
        X_Request_Id="tenant",
    )
    site.ask("POST", "/api/v1/tasks", {"command": 7}, token=site.user, X_Request_Id="bad")
    site.ask("GET", "/api/v1/tokens", token=site.user, X_Request_Id="fixed")
    assert [site.of(each)["code"] for each in ("rights", "tenant", "fixed")] == [
        "not_permitted",
        "tenant_not_allowed",
        "not_permitted",
    ]
    assert site.of("tenant")["tenant_id"] == "rival"
    assert (site.of("bad")["result"], site.of("bad")["user"]) == ("refused", "ann")
    assert site.of("fixed")["user"] == "ann"


def test_reads_are_not_recorded(site) -> None:
    before = len(site.entries())
    for path in (
        "/api/v1/tasks",
        "/api/v1/nodes",
        "/metrics",
        "/api/v1/tasks/99",
        "/api/v1/nothing",
        "/health",
    ):
        site.ask("GET", path)
    site.ask("POST", "/api/v1/whatif", {"submit": {"command": "true"}})
    assert len(site.entries()) == before


def test_a_revoked_token_is_named_by_its_id(site) -> None:
    made = site.world.ask("POST", "/api/v1/tokens", {"name": "x", "tenants": ["mine"]}).body
    site.ask("DELETE", f"/api/v1/tokens/{made['id']}")
    assert site.ask("GET", "/api/v1/tasks", token=made["token"], X_Request_Id="late").status == 401
    found = site.of("late")
    assert (found["code"], found["token_id"], found["user"]) == ("token_revoked", made["id"], None)


def test_hundreds_of_guesses_are_a_few_entries_that_count_them_all(site) -> None:
    before = len(site.entries())
    codes = [
        site.ask("GET", "/api/v1/tasks", token=f"dgpu_aaaaaaaaaaaa_{number}").body["code"]
        for number in range(300)
    ]
    assert set(codes) == {"wrong_token", "too_many_failures"}

    def refused() -> list[dict[str, Any]]:
        return [each for each in site.entries() if each["code"] in set(codes)]

    # Counts are written at most once a second.
    wait_until(lambda: sum(each["count"] for each in refused()) == 300)
    assert len(site.entries()) - before <= 6
    assert "dgpu_aaaaaaaaaaaa" not in json.dumps(refused())


def test_a_token_in_the_place_of_an_id_is_not_kept(site) -> None:
    reply = site.ask("DELETE", f"/api/v1/tokens/{site.rival}", X_Request_Id="slip")
    assert reply.status == 404
    assert site.of("slip")["subject"] == "dgpu_…"
    assert site.rival.rpartition("_")[2] not in json.dumps(site.entries())


def test_no_secret_is_in_the_log_the_journal_or_the_history(site) -> None:
    site.ask("POST", "/api/v1/tasks", {"command": "id", "env": {"A": "hush-env"}}, token=site.user)
    site.ask("GET", f"/api/v1/tasks?q=hush-query&token={site.user}", token="hush-guess")
    text = json.dumps(site.entries())
    for secret in ("hush", site.user, TOKEN):
        assert secret not in text


def test_a_tenant_admin_sees_its_own_tenants_without_other_names(site) -> None:
    mine, theirs = site.world.submit(tenant_id="mine"), site.world.submit(tenant_id="rival")
    site.ask("DELETE", f"/api/v1/tasks/{mine}", token=site.rival, X_Request_Id="by-rival")
    site.ask("DELETE", f"/api/v1/tasks/{theirs}", token=site.user, X_Request_Id="by-ann")
    site.ask("DELETE", f"/api/v1/tasks/{theirs}", token=site.rival, X_Request_Id="rivals-own")
    seen = site.entries(token=site.chief)
    text = json.dumps(seen)
    assert "bob" not in text
    assert "rival" not in text
    assert "by-ann" in text
    attacked = [each for each in seen if each["subject"] == mine and each["result"] == "refused"]
    assert [(each["user"], each["origin"], each["role"]) for each in attacked] == [(None, None, "user")]
    assert site.entries("&tenant=rival", token=site.chief) == []
    assert site.entries("&user=bob", token=site.chief) == []
    export = site.ask("GET", "/api/v1/audit/export", token=site.chief).raw.decode()
    assert "bob" not in export
    assert "rival" not in export


def test_a_user_may_not_read_it_and_that_is_recorded(site) -> None:
    assert site.ask("GET", "/api/v1/audit", token=site.user, X_Request_Id="nosy").status == 403
    assert site.of("nosy")["action"] == "audit.read"


def test_the_export_has_every_entry_on_a_line(site) -> None:
    for _ in range(5):
        site.world.submit(tenant_id="mine")
    reply = site.ask("GET", "/api/v1/audit/export?action=task.submit")
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in reply.raw.decode().splitlines()]
    assert lines == site.entries("&action=task.submit")
    assert len(lines) == 5


def test_pages_follow_the_cursor(site) -> None:
    for _ in range(7):
        site.world.submit(tenant_id="mine")
    whole, cursor, found = site.entries("&action=task.submit"), "", []
    while cursor is not None:
        page = site.ask(
            "GET", f"/api/v1/audit?action=task.submit&limit=3{cursor and '&cursor='}{cursor}"
        ).body
        found += page["entries"]
        cursor = page["next_cursor"]
    assert found == whole


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("result=maybe", "result"),
        ("action=Task;", "action"),
        ("since=soon", "since"),
        ("cursor=1-2", "cursor"),
        ("limit=0", "limit"),
        (f"user={'x' * 200}", "user"),
    ],
)
def test_a_wrong_query_names_the_field(site, query: str, field: str) -> None:
    reply = site.ask("GET", f"/api/v1/audit?{query}")
    assert reply.status == 400
    assert reply.body["errors"][0]["path"] == field


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
