"""No byte of another tenant in any answer: every GET call and every stream, with words that cannot be mistaken.

Independent of the table of rights and of the code that leaves names out: only the words count.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from dgpu.core.commands import ObserveCondition, ReportFinished, ReportStarted
from dgpu.core.model.health import HealthRules
from dgpu.core.model.ids import GpuId, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.alerts.rules import QuotaRule, RuleSet, WaitRule
from dgpu.service.alerts.values import MachineOptions
from rest_world import RestWorld

OWN = "mine"
SECRET = "quokka"  # in every name of the other tenant
RIVAL = f"{SECRET}-tenant"
DESCRIBING = {"GET /openapi.json", "GET /docs"}  # with examples of ids
# The audit log holds the reader's own requests, also those for tasks that it may not see.
WITH_OTHER_IDS = DESCRIBING | {"GET /api/v1/audit", "GET /api/v1/audit/export"}
STREAMS = {"GET /api/v1/board/stream", "GET /api/v1/events"}
RULES = RuleSet(quota_usage=QuotaRule(percent=0.0), queue_wait=WaitRule(limit_ms=0))
# As an administrator reads them, these answers hold the words: the test looks where they are.
TELLING = {
    "GET /api/v1/tasks",
    "GET /api/v1/queue",
    "GET /api/v1/tasks/{task_id}",
    "GET /api/v1/gpus",
    "GET /api/v1/tenants",
    "GET /api/v1/quota",
    "GET /api/v1/estimates",
    "GET /api/v1/tokens",
    "GET /api/v1/alerts",
    "GET /api/v1/alerts/{alert_id}",
    "GET /api/v1/alerts/silences",
    "GET /api/v1/alerts/silences/{silence_id}",
    "GET /api/v1/history/usage",
    "GET /api/v1/history/timeline",
    "GET /api/v1/history/nodes/{node_id}/health",
    "GET /api/monitor/metrics",
    "GET /api/v1/board",
    "GET /api/v1/board/stream",
    "GET /api/v1/events",
    "GET /api/v1/services",
    "GET /api/v1/workers",
    "GET /metrics",
}


class Site:
    """Two tenants whose tasks share a GPU, fail, wait, are stopped for each other, and cause alerts."""

    def __init__(self, world: RestWorld) -> None:
        self.world = world
        world.add_node("n1", gpus=3)
        world.add_node("n2", gpus=1, model="T4")
        world.ask("POST", "/api/v1/tenants", {"id": OWN, "max_gpus": 8})
        world.ask("POST", "/api/v1/tenants", {"id": RIVAL, "max_gpus": 8, "guaranteed_gpus": 1})
        self.token = self._token(OWN, "ann")
        self.rival_token = self._token(RIVAL, f"{SECRET}-user")
        self.own_ids: set[int] = set()
        self.rival_ids: set[int] = set()
        self._learn()
        self._fail_beside_each_other()
        self._fill()
        self._serve()
        self._alert()

    def _token(self, tenant: str, user: str) -> str:
        asked = {"name": f"of {user}", "user": user, "role": "tenant-admin", "tenants": [tenant]}
        return str(self.world.ask("POST", "/api/v1/tokens", asked).body["token"])

    def own(self, **fields: Any) -> int:
        return self._submit(self.token, self.own_ids, {"command": "train own", **fields})

    def rival(self, number: int = 0, **fields: Any) -> int:
        words = {
            "command": f"{SECRET}-command-{number} --{SECRET}-flag",
            "name": f"{SECRET}-name",
            "labels": {f"{SECRET}-label": f"{SECRET}-value"},
            "env": {f"{SECRET.upper()}_ENV": f"{SECRET}-env"},
            "model_name": f"{SECRET}-model",
            "workdir": f"/{SECRET}-dir",
        }
        return self._submit(self.rival_token, self.rival_ids, {**words, **fields})

    def _submit(self, token: str, ids: set[int], task: dict[str, Any]) -> int:
        reply = self.world.ask("POST", "/api/v1/tasks", task, {"Authorization": f"Bearer {token}"})
        assert reply.status == 201, reply
        number = int(reply.body["task_id"].removeprefix("task-"))
        ids.add(number)
        return number

    def _end(self, task_id: int, **how: Any) -> None:
        lease_id = self.world.read(lambda state: state.tasks[TaskId(task_id)].lease_id)
        self.world.execute(ReportStarted(lease_id=lease_id))
        self.world.execute(ReportFinished(lease_id=lease_id, **{"outcome": Outcome.EXITED, **how}))

    def _learn(self) -> None:
        self._end(self.rival(gpu_model="V100"), peak_memory_mb=9_000)
        self._end(self.own(gpu_model="V100"))

    def _fail_beside_each_other(self) -> None:
        """The only T4 is blamed for the failures of one tenant, which stops the task of the other."""
        part = {"gpu_model": "T4", "gpu_share": 0.5, "gpu_memory_mb": 1_000}
        victim = self.own(**part)
        self._end(self.rival(7, **part), exit_code=1)
        self._end(self.rival(gpu_model="V100"))
        self._end(self.rival(8, **part), exit_code=1)
        self._end(victim, outcome=Outcome.STOPPED)
        error = self.world.ask("GET", f"/api/v1/tasks/{victim}").body["error"]
        assert "out of service" in error

    def _fill(self) -> None:
        for number in range(3):
            self.rival(number, gpu_model="V100", priority=60)
        for number in range(3, 6):
            self.rival(number, gpu_model="V100", priority=80)
        self.waiting = [self.own(gpu_model="V100", priority=60), self.own(gpu_count=3, gpu_model="V100")]
        self.world.execute(ObserveCondition(gpu_id=GpuId("GPU-n1-0"), warm=(f"{SECRET}-model",)))

    def _serve(self) -> None:
        """A service of the other tenant, and a function call with the worker that waits for it."""
        task = {"command": f"{SECRET}-server", "gpu_count": 0}
        asked = {"task": task, "port": 8_000}
        sent = {"Authorization": f"Bearer {self.rival_token}"}
        assert self.world.ask("PUT", "/api/v1/services/web", asked, sent).status == 200
        self._submit(self.rival_token, self.rival_ids, {"entrypoint": f"{SECRET}:call", "gpu_model": "V100"})

    def _alert(self) -> None:
        watch = self.world.alerts
        assert watch is not None
        self.world.run(watch.look())
        comment = f"{SECRET}-comment"
        for alert in self.world.ask("GET", "/api/v1/alerts").body["alerts"]:
            self.world.ask("POST", f"/api/v1/alerts/{alert['id']}/acknowledge", {"comment": comment})
        for subject in (f"tenant {RIVAL}", "pool batch"):
            asked = {"rule": "*", "subject": subject, "seconds": 600, "comment": comment}
            assert self.world.ask("POST", "/api/v1/alerts/silences", asked).status == 201

    def read(self, name: str, path: str, token: str, **headers: str) -> tuple[int, bytes]:
        """Of a stream, all up to an event that the reader's own tenant causes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.world.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(
                "GET", path, headers={"Authorization": f"Bearer {token}", **sent} if token else sent
            )
            response = connection.getresponse()
            if name not in STREAMS or response.status != 200:
                return response.status, response.read()
            return 200, b"".join(self._stream(response, packed=bool(headers)))

    def _stream(self, response: http.client.HTTPResponse, *, packed: bool) -> Iterator[bytes]:
        unpack = (
            zlib.decompressobj(31).decompress if packed and response.getheader("content-encoding") else bytes
        )
        told = unpack(response.read1())
        self.rival(8, gpu_model="V100")
        marks = [f"task-{(last := self.own())}".encode(), f'"changed":[{last}'.encode(), f",{last}]".encode()]
        while not any(mark in told for mark in marks):
            told += unpack(response.read1())
        yield told


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = Settings(health=HealthRules(failures_in_a_row=2))
    alerts = AlertOptions(interval_ms=10**9, machine=MachineOptions(rules=RULES))
    with RestWorld(tmp_path_factory.mktemp("leaks"), settings=settings, alerts=alerts) as world:
        yield Site(world)


def paths_of(site: Site, path: str) -> Iterator[str]:
    """A new kind of name in a path fails here, until the test knows values of it."""
    alerts = site.world.ask("GET", "/api/v1/alerts").body["alerts"]
    silences = site.world.ask("GET", "/api/v1/alerts/silences").body["silences"]
    values = {
        "task_id": [*sorted(site.own_ids), *sorted(site.rival_ids)],
        "file_path": ["a"],
        "sha256": ["0" * 64],
        "channel_id": ["unknown"],
        "tenant_id": [OWN],
        "name": ["web"],
        "node_id": ["n1", "n2"],
        "gpu_id": ["GPU-n1-0", "GPU-n2-0"],
        "alert_id": [alert["id"] for alert in alerts],
        "silence_id": [silence["id"] for silence in silences],
    }
    names = re.findall(r"{(\w+)}", path)
    for chosen in product(*(values[name] for name in names)):
        yield re.sub(r"{\w+}", "%s", path) % chosen


def calls_of(site: Site) -> list[tuple[str, str]]:
    paths = site.world.ask("GET", "/openapi.json").body["paths"]
    found = [(f"GET {path}", path) for path, methods in paths.items() if "get" in methods]
    return [*found, *((name, name.partition(" ")[2]) for name in DESCRIBING)]


def queries(path: str) -> list[str]:
    return {
        "/api/v1/history/gpus": ["?ids=GPU-n1-0,GPU-n2-0"],
        "/api/v1/history/usage": ["?by=tenant,pool,user"],
        "/api/v1/tasks": ["", "?status=running", "?status=pending", f"?tenant_id={OWN}"],
        "/api/v1/alerts/silences": ["", "?ended=true"],
    }.get(path, [""])


def test_no_answer_and_no_stream_holds_a_word_of_another_tenant(site) -> None:
    telling = set()
    for name, template in calls_of(site):
        for path, query in product(list(paths_of(site, template)), queries(template)):
            status, told = site.read(name, path + query, site.token)
            assert SECRET.encode() not in told.lower(), f"{path}{query}: {told!r}"
            if status == 200:
                named = {int(number) for number in re.findall(rb"task-(\d+)", told)}
                assert named <= site.own_ids or name in WITH_OTHER_IDS, (path, told)
            if name in TELLING and name not in STREAMS:
                telling |= (
                    {name} if SECRET.encode() in site.read(name, path + query, "")[1].lower() else set()
                )
    assert telling == TELLING - STREAMS


def test_streams_hold_no_word_of_another_tenant(site) -> None:
    for name, headers in (
        ("GET /api/v1/board/stream", {}),
        ("GET /api/v1/board/stream", {"Accept_Encoding": "gzip"}),
        ("GET /api/v1/events", {}),
        ("GET /api/v1/events", {"Last_Event_ID": "1"}),
    ):
        path = name.partition(" ")[2]
        told = site.read(name, path, site.token, **headers)[1]
        assert SECRET.encode() not in told.lower(), told
        if "events" in name:
            named = {int(number) for number in re.findall(rb"task-(\d+)", told)}
            assert named
            assert named <= site.own_ids
    assert SECRET.encode() in site.read("GET /api/v1/board/stream", "/api/v1/board/stream", "")[1]
    every = site.read("GET /api/v1/events", "/api/v1/events", "", Last_Event_ID="1")[1]
    assert SECRET.encode() in every


def test_the_board_shows_own_tasks_and_only_counts_the_others(site) -> None:
    board = json.loads(site.read("GET /api/v1/board", "/api/v1/board", site.token)[1])
    every = json.loads(site.read("GET /api/v1/board", "/api/v1/board", "")[1])
    assert {number for tasks in board["gpus"]["tasks"] for number in tasks} <= site.own_ids
    assert {number for tasks in every["gpus"]["tasks"] for number in tasks} & site.rival_ids
    assert board["gpus"]["task_count"] == every["gpus"]["task_count"]
    assert board["gpus"]["warm"] == [[]] * 4
    assert [tenant["id"] for tenant in board["tenants"]] == [OWN]
    assert {tenant["id"] for tenant in every["tenants"]} == {OWN, RIVAL}
    assert board["counts"]["waiting"] == every["counts"]["waiting"]


def test_a_reader_gets_own_alerts_in_full_and_others_without_names(site) -> None:
    alerts = json.loads(site.read("GET /api/v1/alerts", "/api/v1/alerts", site.token)[1])
    every = site.world.ask("GET", "/api/v1/alerts").body
    told = {(alert["rule"], alert["subject"]): alert for alert in alerts["alerts"]}
    assert alerts["total"] == len(told) == alerts["firing"]
    assert ("quota_usage", f"tenant {RIVAL}") not in told
    waits = told["queue_wait", "pool online"]
    assert waits["summary"] == "A task of another tenant (pool online) has waited for 0 min."
    assert "task" not in waits["facts"]
    assert told["queue_wait", "pool batch"]["facts"]["task"] == f"task-{site.waiting[0]}"
    assert told["gpu_error", "GPU-n2-0"]["summary"] == "GPU GPU-n2-0 on n2 is out of service (failures)."
    assert every["total"] > alerts["total"]
    hidden = next(each for each in every["alerts"] if each["subject"] == f"tenant {RIVAL}")
    path = f"/api/v1/alerts/{hidden['id']}"
    assert site.read("GET /api/v1/alerts/{alert_id}", path, site.token)[0] == 404


def test_why_counts_the_others_and_says_what_would_help(site) -> None:
    last = max(site.own_ids)
    told = json.loads(site.read("GET", f"/api/v1/tasks/{last}/why", site.token)[1])
    ahead = next(each for each in told["blockers"] if each["code"] == "tasks_ahead")
    assert re.fullmatch(r"\d+ own tasks? and \d+ tasks? of other tenants come first", ahead["detail"])
    assert {int(name.removeprefix("task-")) for name in told["ahead"]} < site.own_ids
    assert len(told["ahead"]) < told["ahead_total"]


def test_a_prediction_holds_no_word_of_another_tenant(site) -> None:
    """Guarantees and reservations of others keep the new tasks waiting."""
    headers = {"Authorization": f"Bearer {site.token}"}
    for task in ({"gpu_model": "V100"}, {"gpu_count": 3, "gpu_model": "V100", "priority": 90}):
        asked = {"submit": {"task": {"command": "train own", **task}, "count": 3}}
        reply = site.world.ask("POST", "/api/v1/whatif", asked, headers)
        assert (reply.status, reply.body["rejected"]) == (200, None)
        assert SECRET not in reply.raw.decode().lower()
        new = {int(each["task_id"].removeprefix("task-")) for each in reply.body["waits"]}
        named = {int(number) for number in re.findall(r"task-(\d+)", reply.raw.decode())}
        assert named <= site.own_ids | new
