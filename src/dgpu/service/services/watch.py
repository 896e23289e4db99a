"""Checks replicas of services, and lets the core take the next step: a second at a time, only on the master.

A check is a request to the replica's port over a channel: the agent connects on the node, and only to the task's own
socket. The count of requests in progress comes from the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import structlog

from dgpu.core.commands import StepServices
from dgpu.core.model.ids import TaskId
from dgpu.core.model.service import ServiceSpec
from dgpu.core.rules.replicas import Reading
from dgpu.core.state import ClusterState
from dgpu.service.leadership.standing import Standing
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.loop.runtime import Runtime
from dgpu.service.proxy.app import Proxy
from dgpu.service.proxy.routes import Route, runs_of
from dgpu.service.proxy.upstream import Upstream, UpstreamFailed
from dgpu.service.task_channels import ChannelRefused

STEP_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 5.0
MAX_CHECKS: Final = 32  # at once

# The agent is not connected, as just after a takeover: nothing is known about the replica. If its node stays away, the
# node counts as lost, and the task starts elsewhere.
_UNKNOWN: Final = frozenset({"node_unreachable", "node_busy"})

_log = structlog.get_logger("dgpu.services")


class _Due(NamedTuple):
    route: Route
    spec: ServiceSpec


class ServiceWatch:
    def __init__(self, runtime: Runtime, proxy: Proxy, standing: Standing) -> None:
        self._runtime = runtime
        self._proxy = proxy
        self._standing = standing
        self._checked: dict[Route, tuple[float, bool]] = {}  # when, and the result
        self._checks: dict[Route, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(MAX_CHECKS)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if self._standing.role != "master":
                continue
            try:
                await self.step()
            except (NotMaster, OutcomeUnknown):  # the leadership was lost: the next master takes the step
                continue
            except Exception:  # noqa: BLE001 - a fault in one step must not end all services
                _log.exception("services_step_failed")

    async def step(self) -> None:
        due = await self._runtime.read(_routes)
        if due is None:
            return
        now = asyncio.get_running_loop().time()
        live = {each.route for each in due}
        self._checked = {route: known for route, known in self._checked.items() if route in live}
        for each in due:
            checked_at, ok = self._checked.get(each.route, (0.0, False))
            # A replica that is not ready is asked each second: it may become ready soon.
            wait = each.spec.interval_ms / 1000 if ok else STEP_SECONDS
            if each.route not in self._checks and now - checked_at >= wait:
                self._checks[each.route] = asyncio.create_task(self._check(each))
        await self._runtime.execute(
            StepServices(readings=self._readings(live), load=dict(self._proxy.in_flight))
        )

    def _readings(self, live: set[Route]) -> dict[TaskId, Reading]:
        """Only of replicas that were checked in their present run."""
        return {
            route.task_id: Reading(ok=self._checked[route][1], requests=self._proxy.requests_of(route))
            for route in live
            if route in self._checked
        }

    async def _check(self, due: _Due) -> None:
        ok = False
        try:
            async with self._room:
                with contextlib.suppress(TimeoutError, UpstreamFailed):
                    async with asyncio.timeout(CHECK_SECONDS):
                        ok = await self._answers(due)
        except ChannelRefused as refused:
            if refused.code in _UNKNOWN:
                self._checked.pop(due.route, None)
                return
        finally:
            del self._checks[due.route]
        self._checked[due.route] = (asyncio.get_running_loop().time(), ok)

    async def _answers(self, due: _Due) -> bool:
        upstream: Upstream = await self._proxy.connect_anew(due.route)
        try:
            if not due.spec.health:
                return True
            await upstream.send_head(
                f"GET {due.spec.health} HTTP/1.1\r\nhost: localhost\r\nuser-agent: dgpu-health\r\n"
                "connection: close\r\n\r\n".encode("latin-1")
            )
            head = await upstream.head(is_head_request=True)
            return 200 <= head.status < 400
        finally:
            upstream.channel.close()

    def close(self) -> None:
        for task in tuple(self._checks.values()):
            task.cancel()


def _routes(state: ClusterState) -> list[_Due] | None:
    """None: there is no service."""
    if not state.services:
        return None
    return [
        _Due(route, spec)
        for service in state.services.values()
        for route, spec in runs_of(state, service, ready=False)
    ]


@contextlib.asynccontextmanager
async def watched_services(runtime: Runtime, proxy: Proxy, standing: Standing) -> AsyncIterator[None]:
    watch = ServiceWatch(runtime, proxy, standing)
    running = asyncio.create_task(watch.run(), name="services")
    try:
        yield
    finally:
        running.cancel()
        watch.close()
        await asyncio.gather(running, return_exceptions=True)
