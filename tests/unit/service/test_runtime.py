from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator

import pytest

from dgpu.core.commands import CancelTasks, RemoveNode
from dgpu.core.digest import digest
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.rejections import JournalUnavailable, StorageFull, UnknownNode
from dgpu.journal.journal import Room
from dgpu.journal.memory import MemoryJournal
from dgpu.service.loop import journal_thread
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.failures import CommandFailed
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.wire.proto.agent_pb2 import FromScheduler
from unit.service.cluster import register, submit

pytestmark = pytest.mark.timeout(60)


class SlowJournal(MemoryJournal):
    """Appends wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.appends = 0

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        self.gate.wait()
        super().append(epoch, index, payload)
        self.appends += 1


class Peer:
    def __init__(self) -> None:
        self.heard: list[FromScheduler] = []
        self.ended = ""

    def send(self, message: FromScheduler) -> None:
        self.heard.append(message)

    def hang_up(self, reason: str, *, fault: bool) -> None:
        self.ended = reason


@pytest.fixture
def journal() -> SlowJournal:
    return SlowJournal()


@pytest.fixture
async def runtime(journal: SlowJournal) -> AsyncIterator[Runtime]:
    recovery = journal.recover()
    clock = Clock()
    scheduler = Scheduler(
        recovery.replayed(), last_index=recovery.index, rules=AgentRules(), started_at=clock.now_ms()
    )
    runtime = Runtime(scheduler, journal, clock)
    await runtime.start(Begin(settings=Settings()))
    yield runtime
    journal.gate.set()
    await runtime.stop()


async def test_it_is_ready_when_its_epoch_is_durable(runtime: Runtime, journal: SlowJournal) -> None:
    assert runtime.ready
    assert (runtime.epoch, runtime.committed_index, journal.appends) == (1, 1, 1)


async def test_a_command_is_answered_after_its_commit(runtime: Runtime, journal: SlowJournal) -> None:
    journal.gate.clear()
    answer = runtime.execute(submit())
    await asyncio.sleep(0.05)
    assert not answer.done()
    journal.gate.set()
    (event,) = await answer
    assert event.first_id == 1
    assert await runtime.execute(RemoveNode(node_id=NodeId("x"))) == UnknownNode(node_id=NodeId("x"))


async def test_what_comes_in_one_turn_of_the_loop_shares_a_record(
    runtime: Runtime, journal: SlowJournal
) -> None:
    before = journal.appends
    await asyncio.gather(*(runtime.execute(submit()) for _ in range(100)))
    assert journal.appends - before == 1


async def test_a_read_sees_only_what_is_durable(runtime: Runtime, journal: SlowJournal) -> None:
    journal.gate.clear()
    answer = runtime.execute(submit())
    await asyncio.sleep(0.01)  # decided and applied by now, but not durable
    read = asyncio.create_task(runtime.read(lambda state: len(state.tasks)))
    await asyncio.sleep(0.05)
    assert not read.done()
    journal.gate.set()
    assert await read == 1
    await answer


async def test_a_read_that_fails_fails_for_its_reader_alone(runtime: Runtime, journal: SlowJournal) -> None:
    journal.gate.clear()
    answer = runtime.execute(submit())
    await asyncio.sleep(0.01)
    bad = asyncio.create_task(runtime.read(lambda state: state.tasks[TaskId(99)]))
    good = asyncio.create_task(runtime.read(lambda state: len(state.tasks)))
    await asyncio.sleep(0.01)
    journal.gate.set()
    with pytest.raises(KeyError):
        await bad
    assert await good == 1
    await answer


async def test_subscribers_hear_of_every_group_in_order_while_the_state_is_of_that_group(
    runtime: Runtime,
) -> None:
    seen: list[tuple[int, int]] = []

    def look(group: CommittedGroup) -> None:
        seen.append((group.index, len(runtime._scheduler.state.tasks)))

    def fail(_group: CommittedGroup) -> None:
        raise ValueError("a subscriber's bug")

    runtime.subscribe(fail)
    unsubscribe = runtime.subscribe(look)
    for _ in range(3):
        await runtime.execute(submit())
    await runtime.read(lambda state: len(state.tasks))
    unsubscribe()
    await runtime.execute(submit())
    assert seen == [(2, 1), (3, 2), (4, 3)]


async def test_who_reads_right_behind_an_answer_reads_what_subscribers_made_of_it(runtime: Runtime) -> None:
    """Lists are kept by a subscriber, which hears of a group after those who are waited for."""
    heard: list[int] = []
    runtime.subscribe(lambda group: heard.append(group.index))
    for number in range(1, 20):
        await runtime.execute(submit())
        assert await runtime.read(lambda state: (len(heard), len(state.tasks))) == (number, number)


async def test_the_last_group_is_told_to_subscribers_before_a_stop(runtime: Runtime) -> None:
    heard: list[int] = []
    runtime.subscribe(lambda group: heard.append(group.index))
    answer = runtime.execute(submit())
    await runtime.stop()
    assert answer.done()
    assert heard == [2]


async def test_a_command_that_meets_a_bug_fails_for_its_caller_alone(runtime: Runtime) -> None:
    refused = runtime.execute(CancelTasks(task_ids=(99,)))
    broken = runtime.execute(submit("many"))  # type: ignore[arg-type]
    good = runtime.execute(submit())
    assert len(await good) == 1
    with pytest.raises(CommandFailed):
        await broken
    assert (await refused).code == "unknown_task"


async def test_a_caller_who_left_does_not_stop_the_others(runtime: Runtime, journal: SlowJournal) -> None:
    journal.gate.clear()
    leaving, staying = runtime.execute(submit()), runtime.execute(submit())
    await asyncio.sleep(0.01)
    leaving.cancel()
    journal.gate.set()
    assert len(await staying) == 1
    assert await runtime.read(lambda state: len(state.tasks)) == 2


async def test_without_room_submits_are_refused_until_there_is_room_again(
    runtime: Runtime, journal: SlowJournal
) -> None:
    await runtime.execute(submit())
    journal.room = Room.RESERVE
    assert await runtime.execute(submit()) == StorageFull()
    assert len(await runtime.execute(CancelTasks(task_ids=(TaskId(1),)))) == 1
    journal.room = Room.OK
    assert len(await runtime.execute(submit())) == 1


async def test_a_group_without_room_never_happened_and_reads_go_on(
    runtime: Runtime, journal: SlowJournal
) -> None:
    """A copy-on-write disk says no in the middle of a write, when the group is decided and applied already."""
    await runtime.execute(submit())
    journal.refusals = 1
    assert await runtime.execute(submit()) == StorageFull()
    assert await runtime.read(lambda state: sorted(state.tasks)) == [1]
    assert await runtime.execute(submit()) == StorageFull()
    journal.room = Room.OK
    async with asyncio.timeout(30):
        while runtime.room is not Room.OK:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    await runtime.execute(submit())
    assert await runtime.read(lambda state: sorted(state.tasks)) == [1, 2]
    assert digest(journal.committed_state()) == await runtime.read(digest)


async def test_a_start_without_room_can_be_read_and_goes_on_when_there_is_room() -> None:
    journal = SlowJournal()
    journal.recover()
    journal.refusals = 1
    clock = Clock()
    scheduler = Scheduler(
        journal.committed_state(), last_index=0, rules=AgentRules(), started_at=clock.now_ms()
    )
    runtime = Runtime(scheduler, journal, clock)
    await runtime.start(Begin(settings=Settings()))
    assert not runtime.ready
    assert await runtime.read(lambda state: len(state.tasks)) == 0
    assert await runtime.execute(submit()) == StorageFull()
    journal.room = Room.OK
    async with asyncio.timeout(30):
        while not runtime.ready:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    await runtime.execute(submit())
    await runtime.stop()


async def test_submits_are_refused_while_something_hinders_the_journal_and_the_rest_goes_on(
    runtime: Runtime,
) -> None:
    runtime.hindrance = "nothing follows it"
    assert await runtime.execute(submit()) == JournalUnavailable(reason="nothing follows it")
    assert runtime.trouble == "nothing follows it"
    assert isinstance(await runtime.execute(RemoveNode(node_id=NodeId("n1"))), UnknownNode)
    runtime.hindrance = ""
    assert not isinstance(await runtime.execute(submit()), JournalUnavailable)


async def test_agents_are_told_through_their_links_and_hung_up_on(runtime: Runtime) -> None:
    first, second = Peer(), Peer()
    one = runtime.connect_agent(first)
    runtime.agent_said(one, register())
    await runtime.execute(submit())
    assert [message.WhichOneof("body") for message in first.heard] == ["welcome", "orders"]
    assert runtime.node_contact(NodeId("n1")).connected
    runtime.agent_said(runtime.connect_agent(second), register())
    assert first.ended == "replaced by a newer connection"
    runtime.agent_left(one)  # too late to matter
    await runtime.execute(submit())
    assert second.heard[0].WhichOneof("body") == "welcome"


async def test_stopping_commits_what_was_asked_for(journal: SlowJournal) -> None:
    clock = Clock()
    recovery = journal.recover()
    scheduler = Scheduler(recovery.replayed(), last_index=0, rules=AgentRules(), started_at=clock.now_ms())
    runtime = Runtime(scheduler, journal, clock)
    await runtime.start(Begin(settings=Settings()))
    answer = runtime.execute(submit())
    await runtime.stop()
    assert answer.done()
    assert len(list(journal.groups())) == 2


async def test_a_broken_journal_ends_the_process_before_anything_is_answered(
    runtime: Runtime, journal: SlowJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(journal_thread.os, "_exit", ended.put)
    journal.broken = True
    answer = runtime.execute(submit())
    assert await asyncio.to_thread(ended.get, timeout=60) == 74
    assert not answer.done()
    runtime._scheduler._commit.in_flight = None  # the real process is gone by now; let the fixture stop


async def test_tries_for_room_do_not_pile_up_before_the_appends() -> None:
    """On a full and slow disk the beat asks more often than the disk answers."""
    gate = threading.Event()
    tries: list[int] = []

    class FullJournal(MemoryJournal):
        def prepare(self) -> None:
            gate.wait()
            tries.append(1)

    thread = journal_thread.JournalThread(
        FullJournal(),
        asyncio.get_running_loop(),
        on_committed=lambda _index, _took_s: None,
        on_not_stored=lambda _: None,
        on_sighting=lambda _: None,
    )
    for _ in range(100):
        thread.make_room()
    gate.set()
    thread.stop()
    assert 1 <= len(tries) <= 2
