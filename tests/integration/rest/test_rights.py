"""The table of rights, walked: every call of the API, every role, own and other tenant, over real HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from dgpu.service.access.operations import OPEN_OPERATIONS, OPERATIONS
from dgpu.service.access.table import RULES, Action, Subject
from dgpu.service.alerts.options import AlertOptions
from dgpu.wire.roles import Role
from rest_world import RestWorld

OWN, OTHER = "mine", "rival"
UNBOUND = {Role.ADMIN, Role.OPERATOR}
STREAMS = {"GET /api/v1/board/stream", "GET /api/v1/events"}
ONLY_DESCRIBED_ELSEWHERE = {"GET /docs", "GET /openapi.json"}  # they describe the API and are not part of it
# They hold the names that users of the own tenant asked for; test_audit.py looks for other names.
OWN_ATTEMPTS = {"GET /api/v1/audit", "GET /api/v1/audit/export"}
HIDDEN = {"unknown_task", "unknown_service", "unknown_tenant", "unknown_token"}


class Seen(NamedTuple):
    status: int
    code: str
    body: bytes


class Site:
    """A scheduler with tasks of two tenants, and a token of each role of the tenant `mine`."""

    def __init__(self, world: RestWorld) -> None:
        self.world = world
        self.own_ids: set[str] = set()
        world.add_node("n1", gpus=2)
        for tenant in (OWN, OTHER):
            world.ask("POST", "/api/v1/tenants", {"id": tenant})
            self.task(tenant)
        self.tokens = {role: self.token(role, OWN) for role in Role}

    def task(self, tenant: str) -> str:
        spec = {"command": f"echo {tenant}-command", "name": f"{tenant}-name", "labels": {"of": tenant}}
        name = self.world.submit(**spec, tenant_id=tenant, model_name=f"{tenant}-model")
        if tenant == OWN:
            self.own_ids.add(name)
        return name

    def token(self, role: Role, tenant: str) -> str:
        return str(self.new_token(role, tenant)["token"])

    def new_token(self, role: Role, tenant: str) -> dict[str, Any]:
        asked = {"name": f"for {tenant}", "user": f"{tenant}-user", "role": role}
        tenants = {} if role in UNBOUND else {"tenants": [tenant]}
        reply = self.world.ask("POST", "/api/v1/tokens", {**asked, **tenants})
        assert reply.status == 201, reply
        return dict(reply.body)

    def ask(self, name: str, path: str, body: Any, token: str) -> Seen:
        method = name.partition(" ")[0]
        headers = {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            headers["Content-Type"], content = "application/json", json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.world.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            streams = name in STREAMS and response.status == 200
            answer = b"" if streams else response.read()
        is_problem = "problem" in (response.getheader("content-type") or "")
        return Seen(response.status, json.loads(answer)["code"] if is_problem else "", answer)


Request = tuple[str, Any]  # path and body
Make = Callable[[Site, str], Request]


def fixed(path: str, body: Any = None) -> Make:
    return lambda _, __: (path, body)


def of_task(suffix: str, body: Any = None) -> Make:
    return lambda site, tenant: (f"/api/v1/tasks/{site.task(tenant)}{suffix}", body)


def of_secret(body: Any = None) -> Make:
    def make(site: Site, tenant: str) -> Request:
        site.world.ask("PUT", f"/api/v1/tenants/{tenant}/secrets/KEY", {"value": "v"})
        return f"/api/v1/tenants/{tenant}/secrets/KEY", body

    return make


def of_service(suffix: str = "", body: Any = None) -> Make:
    def make(site: Site, tenant: str) -> Request:
        spec = {"task": {"command": "true", "tenant_id": tenant}, "port": 8000}
        assert site.world.ask("PUT", "/api/v1/services/chat", spec).status == 200
        return f"/api/v1/services/chat{suffix}?tenant_id={tenant}", body

    return make


def of_tenant(body: Any = None) -> Make:
    return lambda _, tenant: (f"/api/v1/tenants/{tenant}", body)


def of_upload(*, known: bool = False) -> Make:
    def make(site: Site, tenant: str) -> Request:
        digest = hashlib.sha256(b"{}").hexdigest()
        path = f"/api/v1/uploads/{digest}?tenant={tenant}"
        if known:
            assert site.world.ask("PUT", path, {}).status == 200
        return path, None if known else {}

    return make


def submit(path: str, wrap: Callable[[Any], Any] = lambda task: task) -> Make:
    return lambda _, tenant: (path, wrap({"command": "true", "tenant_id": tenant}))


CASES: dict[str, Make] = {
    "POST /api/v1/tasks": submit("/api/v1/tasks"),
    "POST /api/v1/tasks/batch": submit("/api/v1/tasks/batch", lambda task: {"tasks": [task]}),
    "POST /api/tasks": submit("/api/tasks"),
    "POST /api/v1/tasks/{task_id}/retry": of_task("/retry", {}),
    "GET /api/v1/tasks": fixed("/api/v1/tasks?limit=1000"),
    "GET /api/v1/queue": fixed("/api/v1/queue?limit=1000"),
    "GET /api/v1/tasks/{task_id}": of_task(""),
    "GET /api/tasks/{task_id}": lambda site, tenant: (f"/api/tasks/{site.task(tenant)}", None),
    "GET /api/v1/tasks/{task_id}/events": of_task("/events"),
    "GET /api/v1/tasks/{task_id}/why": of_task("/why"),
    "GET /api/v1/tasks/{task_id}/logs": of_task("/logs"),
    "GET /api/v1/tasks/{task_id}/output": of_task("/output"),
    "GET /api/v1/tasks/{task_id}/result": of_task("/result"),
    "GET /api/v1/tasks/{task_id}/result/content": of_task("/result/content"),
    "POST /api/v1/tasks/results": lambda site, tenant: (
        "/api/v1/tasks/results",
        {"task_ids": [site.task(tenant)]},
    ),
    "GET /api/v1/workers": fixed("/api/v1/workers"),
    "GET /api/v1/tasks/{task_id}/files": of_task("/files"),
    "GET /api/v1/tasks/{task_id}/files/{file_path}": of_task("/files/a"),
    "POST /api/v1/tasks/{task_id}/channels": of_task("/channels", {"command": "true"}),
    "GET /api/v1/channels/{channel_id}": fixed("/api/v1/channels/unknown"),
    "POST /api/v1/tasks/{task_id}/links": of_task("/links", {"port": 8888}),
    "GET /api/v1/services": fixed("/api/v1/services"),
    "GET /api/v1/services/{name}": of_service(),
    "PUT /api/v1/services/{name}": submit("/api/v1/services/chat", lambda task: {"task": task, "port": 8000}),
    "POST /api/v1/services/{name}/scale": of_service("/scale", {"replicas": 2}),
    "POST /api/v1/services/{name}/rollback": of_service("/rollback", {}),
    "POST /api/v1/services/{name}/restart": of_service("/restart", {}),
    "POST /api/v1/services/{name}/links": of_service("/links", {}),
    "DELETE /api/v1/services/{name}": of_service(),
    "DELETE /api/v1/tasks/{task_id}": of_task(""),
    "POST /api/v1/tasks/cancel": lambda site, tenant: (
        "/api/v1/tasks/cancel",
        {"task_ids": [site.task(tenant)]},
    ),
    "POST /api/v1/tasks/{task_id}/hold": of_task("/hold", {}),
    "POST /api/v1/tasks/{task_id}/release": of_task("/release", {}),
    "POST /api/v1/tasks/{task_id}/priority": of_task("/priority", {"priority": 60}),
    "GET /api/v1/tenants": fixed("/api/v1/tenants"),
    "GET /api/v1/tenants/{tenant_id}": of_tenant(),
    "GET /api/v1/quota": fixed("/api/v1/quota"),
    "GET /api/v1/estimates": fixed("/api/v1/estimates"),
    "GET /api/v1/history/usage": fixed("/api/v1/history/usage?by=tenant,user"),
    "GET /api/monitor/metrics": fixed("/api/monitor/metrics"),
    "POST /api/v1/tenants": fixed("/api/v1/tenants", {"id": "third"}),
    "PUT /api/v1/tenants/{tenant_id}": of_tenant({}),
    "DELETE /api/v1/tenants/{tenant_id}": of_tenant(),
    "PUT /api/v1/quota": fixed("/api/v1/quota", {"online_percent": 0.5}),
    "GET /api/v1/nodes": fixed("/api/v1/nodes"),
    "GET /api/v1/schedulers": fixed("/api/v1/schedulers"),
    "GET /api/v1/nodes/{node_id}": fixed("/api/v1/nodes/n1"),
    "GET /api/v1/gpus": fixed("/api/v1/gpus"),
    "GET /api/v1/history/gpus": fixed("/api/v1/history/gpus?ids=GPU-n1-0"),
    "GET /api/v1/history/gpus/{gpu_id}": fixed("/api/v1/history/gpus/GPU-n1-0"),
    "GET /api/v1/history/nodes/{node_id}": fixed("/api/v1/history/nodes/n1"),
    "GET /api/v1/history/cluster": fixed("/api/v1/history/cluster"),
    "GET /api/v1/history/queue": fixed("/api/v1/history/queue"),
    "POST /api/v1/nodes/{node_id}/drain": fixed("/api/v1/nodes/n1/drain", {}),
    "POST /api/v1/nodes/{node_id}/resume": fixed("/api/v1/nodes/n1/resume", {}),
    "POST /api/v1/nodes/{node_id}/lost": fixed("/api/v1/nodes/n1/lost", {}),
    "DELETE /api/v1/nodes/{node_id}": fixed("/api/v1/nodes/n1"),
    "POST /api/v1/gpus/{gpu_id}/recover": fixed("/api/v1/gpus/GPU-n1-0/recover", {}),
    "GET /api/v1/board": fixed("/api/v1/board"),
    "GET /api/v1/board/stream": fixed("/api/v1/board/stream"),
    "GET /api/v1/events": fixed("/api/v1/events"),
    "GET /metrics": fixed("/metrics"),
    "GET /api/v1/history/timeline": fixed("/api/v1/history/timeline"),
    "GET /api/v1/history/nodes/{node_id}/health": fixed("/api/v1/history/nodes/n1/health"),
    "GET /api/v1/alerts": fixed("/api/v1/alerts"),
    "GET /api/v1/alerts/{alert_id}": fixed("/api/v1/alerts/alert-1"),
    "GET /api/v1/alerts/silences": fixed("/api/v1/alerts/silences"),
    "GET /api/v1/alerts/silences/{silence_id}": fixed("/api/v1/alerts/silences/silence-1"),
    "GET /api/v1/alerts/targets": fixed("/api/v1/alerts/targets"),
    "POST /api/v1/alerts/{alert_id}/acknowledge": fixed("/api/v1/alerts/alert-1/acknowledge", {}),
    "POST /api/v1/alerts/silences": fixed(
        "/api/v1/alerts/silences", {"rule": "agent_offline", "seconds": 60}
    ),
    "DELETE /api/v1/alerts/silences/{silence_id}": fixed("/api/v1/alerts/silences/silence-9"),
    "POST /api/v1/alerts/test": fixed("/api/v1/alerts/test", {}),
    "POST /api/v1/whatif": submit("/api/v1/whatif", lambda task: {"submit": task}),
    "GET /api/v1/tokens": fixed("/api/v1/tokens"),
    "POST /api/v1/tokens": lambda _, tenant: ("/api/v1/tokens", {"name": "t", "tenants": [tenant]}),
    "DELETE /api/v1/tokens/{token_id}": lambda site, tenant: (
        f"/api/v1/tokens/{site.new_token(Role.USER, tenant)['id']}",
        None,
    ),
    "GET /api/v1/uploads": lambda _, tenant: (f"/api/v1/uploads?tenant={tenant}", None),
    "GET /api/v1/uploads/{sha256}": of_upload(known=True),
    "PUT /api/v1/uploads/{sha256}": of_upload(),
    "GET /api/v1/secrets": lambda site, tenant: ("/api/v1/secrets", of_secret()(site, tenant) and None),
    "PUT /api/v1/tenants/{tenant_id}/secrets/{name}": of_secret({"value": "w"}),
    "DELETE /api/v1/tenants/{tenant_id}/secrets/{name}": of_secret(),
    "POST /api/v1/secrets/rotate": fixed("/api/v1/secrets/rotate", {}),
    "GET /api/v1/audit": fixed("/api/v1/audit?limit=1000"),
    "GET /api/v1/audit/export": fixed("/api/v1/audit/export"),
    "POST /api/v1/session/code": fixed("/api/v1/session/code", {}),
    "GET /api/v1/session": fixed("/api/v1/session"),
    "DELETE /api/v1/session": fixed("/api/v1/session"),
    "GET /api/v1/whoami": fixed("/api/v1/whoami"),
}
NAMES_A_TENANT = {
    name
    for name, action in OPERATIONS.items()
    if "{task_id}" in name
    or "/services/{name}" in name
    or name
    in {
        "GET /api/v1/tenants/{tenant_id}",
        "POST /api/v1/tasks/cancel",
        "POST /api/v1/tasks/results",
        "DELETE /api/v1/tokens/{token_id}",
    }
    or (action in {Action.SUBMIT_TASK, Action.CHANGE_TOKEN, Action.CHANGE_SECRET, Action.PREDICT})
}
REFUSED_BY_NAME = {
    "POST /api/v1/tasks",
    "POST /api/v1/tasks/batch",
    "POST /api/tasks",
    "PUT /api/v1/services/{name}",
    "POST /api/v1/tokens",
    "POST /api/v1/whatif",
    "GET /api/v1/uploads",
    "GET /api/v1/uploads/{sha256}",
    "PUT /api/v1/uploads/{sha256}",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with RestWorld(tmp_path_factory.mktemp("rights"), alerts=AlertOptions()) as world:
        yield Site(world)


def expected(name: str, role: Role, tenant: str) -> str:
    """From the table alone: `allowed`, `refused` (403), or `hidden` (404, as if it never was)."""
    rule = RULES[OPERATIONS[name]]
    if role in UNBOUND:
        return "allowed" if role in rule.own else "refused"
    if rule.subject is Subject.CLUSTER:
        return "allowed" if role in rule.other else "refused"
    if role not in rule.own:
        return "refused"
    if tenant == OWN or name not in NAMES_A_TENANT or role in rule.other:
        return "allowed"
    return "refused" if name in REFUSED_BY_NAME else "hidden"


def test_every_call_of_the_description_is_walked(site) -> None:
    """A new call without a row and a case fails here; without a row, the service does not even start."""
    paths = site.world.ask("GET", "/openapi.json").body["paths"]
    described = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    assert described == set(OPERATIONS) - ONLY_DESCRIBED_ELSEWHERE | OPEN_OPERATIONS
    assert set(CASES) == set(OPERATIONS) - ONLY_DESCRIBED_ELSEWHERE


def test_every_action_has_a_rule_and_a_call() -> None:
    assert set(RULES) == set(Action) == set(OPERATIONS.values())


@pytest.mark.parametrize("tenant", [OWN, OTHER])
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", list(CASES))
def test_a_call_follows_the_table(site, name: str, role: Role, tenant: str) -> None:
    path, body = CASES[name](site, tenant)
    seen = site.ask(name, path, body, site.tokens[role])
    outcome = "refused" if seen.status == 403 else "hidden" if seen.code in HIDDEN else "allowed"
    assert outcome == expected(name, role, tenant), seen
    assert seen.status < 500 or seen.code == "foresight_away", seen  # this world has no follower
    if (seen.status == 201 or name == "POST /api/v1/whatif") and tenant == OWN:
        site.own_ids.update(re.findall(r"task-\d+", seen.body.decode()))
    if role not in UNBOUND and seen.status < 300 and name not in OWN_ATTEMPTS:
        assert OTHER.encode() not in seen.body
        assert set(re.findall(r"task-\d+", seen.body.decode())) <= site.own_ids


@pytest.mark.parametrize("name", [name for name in CASES if "{task_id}" in name])
def test_a_task_of_another_tenant_is_like_one_that_never_was(site, name: str) -> None:
    """The same answer, word for word but for the id, also when the rest of the request is wrong."""
    path, body = CASES[name](site, OTHER)
    number = re.search(r"task-\d+", path).group()
    for query in ("", "?wrong=1", "?tail=x"):
        foreign = site.ask(name, path + query, body, site.tokens[Role.USER])
        unknown = site.ask(name, path.replace(number, "task-999999") + query, body, site.tokens[Role.USER])
        told = re.sub(rb'"request_id":"[^"]*"', b"", foreign.body.replace(number.encode(), b"task-999999"))
        assert foreign.status == unknown.status == 404
        assert told == re.sub(rb'"request_id":"[^"]*"', b"", unknown.body)


def test_a_viewer_of_all_tenants_sees_everything_and_changes_nothing(site) -> None:
    """What a Prometheus or a wall display needs."""
    asked = {"name": "wall", "role": "viewer", "tenants": ["*"]}
    token = site.world.ask("POST", "/api/v1/tokens", asked).body["token"]
    for name in ("GET /metrics", "GET /api/v1/board", "GET /api/v1/alerts", "GET /api/v1/history/timeline"):
        assert site.ask(name, CASES[name](site, OTHER)[0], None, token).status == 200
    assert b"rival-name" in site.ask("GET /api/v1/tasks", "/api/v1/tasks", None, token).body
    for name in (
        "POST /api/v1/tasks",
        "DELETE /api/v1/tasks/{task_id}",
        "POST /api/v1/nodes/{node_id}/drain",
    ):
        path, body = CASES[name](site, OTHER)
        assert site.ask(name, path, body, token).status == 403
