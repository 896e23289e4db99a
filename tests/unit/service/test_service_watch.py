"""Checks of replicas: an answer, a refusal, and a node of which nothing is known."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dgpu.core.commands import StepServices
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.proxy.routes import Route
from dgpu.service.services import watch
from dgpu.service.task_channels import ChannelRefused

ROUTE = Route(LeaseId(1), NodeId("n1"), 8000, TaskId(7))


class Near:
    """The proxy, with an agent that takes connections, refuses them, or is away."""

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.refusal: ChannelRefused | None = None

    def requests_of(self, route: Route) -> int:
        return 0

    async def connect_anew(self, route: Route) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(channel=SimpleNamespace(close=lambda: None))


class Core:
    def __init__(self) -> None:
        self.steps: list[StepServices] = []

    async def read(self, _: Any) -> Any:
        return [watch._Due(ROUTE, SimpleNamespace(health="", interval_ms=0))]

    async def execute(self, command: StepServices) -> None:
        self.steps.append(command)


@pytest.mark.parametrize(
    ("code", "reading"),
    [("", True), ("port_refused", False), ("node_silent", False), ("node_unreachable", None)],
)
def test_a_node_that_is_away_says_nothing_about_its_replicas(code, reading) -> None:
    async def run() -> StepServices:
        near, core = Near(), Core()
        service_watch = watch.ServiceWatch(core, near, SimpleNamespace(role="master"))
        await checked(service_watch)
        near.refusal = ChannelRefused(code, "refused") if code else None
        service_watch._checked = {route: (0.0, ok) for route, (_, ok) in service_watch._checked.items()}
        await checked(service_watch)
        await service_watch.step()
        service_watch.close()
        return core.steps[-1]

    async def checked(service_watch: watch.ServiceWatch) -> None:
        await service_watch.step()
        await asyncio.gather(*service_watch._checks.values())

    found = asyncio.run(run()).readings.get(ROUTE.task_id)
    assert (None if found is None else found.ok) is reading


@pytest.mark.parametrize(
    ("error", "said"),
    [(NotMaster(), []), (OutcomeUnknown(), []), (ValueError("a bug"), ["services_step_failed"])],
)
async def test_a_lost_leadership_is_no_fault_of_a_service(monkeypatch, error, said) -> None:
    monkeypatch.setattr(watch, "STEP_SECONDS", 0.0)
    core, second = Core(), asyncio.Event()

    async def fail_once(command: StepServices) -> None:
        core.steps.append(command)
        if len(core.steps) == 1:
            raise error
        second.set()

    monkeypatch.setattr(core, "execute", fail_once)
    service_watch = watch.ServiceWatch(core, Near(), SimpleNamespace(role="master"))
    with capture_logs() as logs:
        running = asyncio.create_task(service_watch.run())
        await second.wait()
        running.cancel()
        service_watch.close()
    assert [line["event"] for line in logs] == said
