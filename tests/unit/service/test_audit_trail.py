from __future__ import annotations

import asyncio

import pytest

from dgpu.core.commands import Command
from dgpu.core.events import Audited
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.journal.memory import MemoryJournal
from dgpu.service.audit import trail as trail_module
from dgpu.service.audit.trail import audit_trail
from dgpu.service.loop.answers import Answer
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler

GUESS = AuditEntry(action="task.list", origin="10.0.0.9", status=403, code="wrong_token")


async def test_attempts_after_the_last_reader_are_written_at_the_end() -> None:
    """A reader makes the trail write at most once a second; the end of the scheduler must not wait for its turn."""
    clock = Clock()
    scheduler = Scheduler(ClusterState(), last_index=0, rules=AgentRules(), started_at=clock.now_ms())
    runtime = Runtime(scheduler, MemoryJournal(), clock)
    await runtime.start(Begin(settings=Settings()))
    written: list[int] = []

    def on_group(group: CommittedGroup) -> None:
        written.extend(event.entry.count for event in group.events if isinstance(event, Audited))

    runtime.subscribe(on_group)
    async with audit_trail(runtime) as trail:
        await trail.record(GUESS)
        await trail.flush()
        for _ in range(3):
            await trail.record(GUESS)
    await runtime.stop()
    assert written == [1, 3]


class Stalled(Runtime):
    """Its engine has no majority: nothing is committed."""

    def execute(self, command: Command) -> asyncio.Future[Answer]:
        return asyncio.get_running_loop().create_future()


async def test_the_end_does_not_wait_for_an_engine_without_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler would have to be killed."""
    monkeypatch.setattr(trail_module, "_STOP_PATIENCE_S", 0.1)
    clock = Clock()
    scheduler = Scheduler(ClusterState(), last_index=0, rules=AgentRules(), started_at=clock.now_ms())
    async with (
        asyncio.timeout(5) as patience,
        audit_trail(Stalled(scheduler, MemoryJournal(), clock)) as trail,
    ):
        for _ in range(2):
            trail.note(GUESS)
    assert not patience.expired()
