"""The runtime of a scheduler that others may replace: effects wait for the leadership, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dgpu.core.model.settings import Settings
from dgpu.journal.engine import FenceLost, Head
from dgpu.journal.memory import MemoryJournal
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.failures import NotMaster, OutcomeUnknown
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.scheduler import Scheduler
from unit.service.cluster import submit

pytestmark = pytest.mark.timeout(60)


class FakeQuorum:
    def __init__(self, journal: MemoryJournal) -> None:
        self.allowed = True
        self.answers = True
        self.fenced: list[str] = []
        self.held: list[Callable[[], None]] = []
        self.unconfirmed: list[Callable[[], None]] = []
        self._journal = journal

    @property
    def last_index(self) -> int:
        return sum(1 for _ in self._journal.groups())

    def may_act(self) -> bool:
        return self.allowed

    def when_allowed(self, action: Callable[[], None]) -> None:
        self.held.append(action)

    def confirm(self, done: Callable[[], None]) -> None:
        if self.answers:
            asyncio.get_running_loop().call_soon(done)
        else:
            self.unconfirmed.append(done)

    def on_fenced(self, why: str) -> None:
        self.fenced.append(why)

    def step_down(self) -> None: ...

    def allow(self) -> None:
        self.allowed = True
        held, self.held = self.held, []
        for action in held:
            action()


class FencedJournal(MemoryJournal):
    is_fenced = False

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        if self.is_fenced:
            raise FenceLost("another scheduler leads", Head())
        super().append(epoch, index, payload)


@pytest.fixture
async def place() -> AsyncIterator[tuple[Runtime, FakeQuorum, FencedJournal]]:
    journal = FencedJournal()
    recovery = journal.recover()
    clock, quorum = Clock(), FakeQuorum(journal)
    scheduler = Scheduler(
        recovery.replayed(), last_index=0, rules=AgentRules(), started_at=clock.now_ms(), is_gated=True
    )
    runtime = Runtime(scheduler, journal, clock, None, quorum)
    yield runtime, quorum, journal
    quorum.allow()
    await runtime.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the test's own limit ends it
        await asyncio.sleep(0.005)


async def test_before_it_leads_it_refuses_commands_and_answers_reads(
    place: tuple[Runtime, FakeQuorum, FencedJournal],
) -> None:
    runtime, _, _ = place
    with pytest.raises(NotMaster):
        await runtime.execute(submit())
    assert await runtime.read(lambda state: len(state.tasks)) == 0


async def test_an_answer_waits_while_the_lease_may_end(
    place: tuple[Runtime, FakeQuorum, FencedJournal],
) -> None:
    """The group is durable, but a master that was paused must not speak before it renewed its lease."""
    runtime, quorum, journal = place
    await runtime.start(Begin(settings=Settings()))
    quorum.allowed = False
    answer = runtime.execute(submit())
    await until(lambda: bool(quorum.held))
    assert len(list(journal.groups())) == 2
    assert not answer.done()
    quorum.allow()
    assert isinstance(await answer, tuple)


async def test_a_read_without_an_answer_of_the_engine_sees_the_committed_state(
    place: tuple[Runtime, FakeQuorum, FencedJournal],
) -> None:
    runtime, quorum, _ = place
    await runtime.start(Begin(settings=Settings()))
    await runtime.execute(submit())
    quorum.answers = False
    assert await runtime.read(lambda state: len(state.tasks)) == 1
    assert runtime.stalled_ms() >= 250
    quorum.unconfirmed[0]()
    assert runtime.stalled_ms() == 0


async def test_after_a_lost_fence_no_caller_gets_a_false_answer(
    place: tuple[Runtime, FakeQuorum, FencedJournal],
) -> None:
    runtime, quorum, journal = place
    await runtime.start(Begin(settings=Settings()))
    journal.is_fenced = True
    in_flight = runtime.execute(submit())
    await until(lambda: bool(quorum.fenced))
    queued = runtime.execute(submit())
    reading = asyncio.create_task(runtime.read(lambda state: len(state.tasks)))
    await asyncio.sleep(0)
    await runtime.abandon()
    with pytest.raises(OutcomeUnknown):
        await in_flight
    with pytest.raises(NotMaster):
        await queued
    with pytest.raises(NotMaster):
        await reading
    with pytest.raises(NotMaster):
        await runtime.execute(submit())
