"""Readers of the same tenants share what is encoded; how many sets of tenants watch at once is bounded."""

from __future__ import annotations

import asyncio

import pytest

from building import cluster, task
from dgpu.core.events import (
    GpuBlamed,
    GpuHealthChanged,
    NodeDraining,
    NodeResumed,
    PriorityChanged,
    TasksCancelled,
    TasksForgotten,
    TasksSubmitted,
    TaskStopRequested,
    TokenRevoked,
)
from dgpu.core.model.health import Blame, Health
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, TenantId, TokenId
from dgpu.core.model.task import Pool, Shape, TaskSpec
from dgpu.core.state import ClusterState
from dgpu.service.access.audiences import MAX_AUDIENCES, Audiences, TooManyAudiences
from dgpu.service.access.principal import Principal
from dgpu.service.board.figures import MAX_CHANGED, ChangedTasks
from dgpu.service.event_owners import OWNERS, OwnerUnknown
from dgpu.service.event_texts import TEXTS
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.rest.feed import EventFeed
from dgpu.service.views.events import ToldGroup
from dgpu.service.views.views import Views
from dgpu.wire.roles import Role


def state_of_two() -> ClusterState:
    """task-1 and task-3 of lab, task-2 of rival."""
    return cluster(task(tenant="lab"), task(tenant="rival"), task(tenant="lab"))


def told(tenants: tuple[str, ...] | None, *events) -> str:
    group = CommittedGroup(index=5, events=events)
    return ToldGroup(group, state_of_two()).text(tenants).decode()


def spec_of(tenant: str) -> TaskSpec:
    return TaskSpec(
        shape=Shape(tenant_id=TenantId(tenant), pool=Pool.BATCH, priority=1, gpus=0),
        detail=b'{"command":"x"}',
    )


def test_the_order_of_tenants_makes_no_other_audience() -> None:
    one = Principal(user="a", role=Role.USER, source="token", tenants=("b", "a"))
    other = Principal(user="b", role=Role.VIEWER, source="token", tenants=("a", "b"))
    assert one.audience == other.audience == ("a", "b")
    assert Principal(user="c", role=Role.ADMIN, source="uid", tenants=None).audience is None


def test_audiences_are_bounded_and_readers_of_all_tenants_find_a_place() -> None:
    busy: set[int] = set()
    audiences: Audiences[int] = Audiences(hash, lambda each: each not in busy)
    for number in range(MAX_AUDIENCES):
        busy.add(audiences.of((f"t{number}",)))
    with pytest.raises(TooManyAudiences):
        audiences.of(("one more",))
    assert audiences.of(("t1",)) == hash(("t1",))
    assert audiences.of(None) == hash(None)
    busy.discard(hash(("t1",)))
    audiences.of(("one more",))
    assert hash(("t1",)) not in audiences.all()


def test_every_event_that_is_told_has_an_owner() -> None:
    """A new event without a row would end the stream of a tenant."""
    assert set(OWNERS) == set(TEXTS)


def test_events_about_several_tasks_are_split_by_tenant() -> None:
    cancelled = TasksCancelled(at=1, task_ids=(TaskId(1), TaskId(2), TaskId(3)))
    assert '"count":2,"task_ids":["task-1","task-3"]' in told(("lab",), cancelled)
    assert '"count":1,"task_ids":["task-2"]' in told(("rival",), cancelled)
    assert '"count":3' in told(None, cancelled)
    raised = PriorityChanged(at=1, priority=7, tasks=((TaskId(2), 1), (TaskId(3), 1)))
    assert '"task_ids":["task-3"],"priority":7' in told(("lab",), raised)
    assert told(("third",), cancelled, raised) == ""


def test_a_batch_of_several_tenants_shows_each_its_own_ids() -> None:
    entries = ((2, spec_of("lab")), (5, spec_of("rival")), (1, spec_of("lab")))
    batch = TasksSubmitted(at=1, first_id=TaskId(10), entries=entries)
    seen = told(("lab",), batch)
    assert '"first_task_id":"task-10","count":2' in seen
    assert '"first_task_id":"task-17","count":1' in seen
    assert "task-12" not in seen
    assert '"first_task_id":"task-12","count":5' in told(("rival",), batch)
    assert told(("lab", "rival"), batch).count("event: ") == 3


def test_an_own_stop_does_not_name_the_task_for_which_it_was_made() -> None:
    stop = TaskStopRequested(
        at=1,
        task_id=TaskId(1),
        lease_id=LeaseId(9),
        reason="quota",
        error="so that task-2 runs",
        for_task=TaskId(2),
    )
    seen = told(("lab",), stop)
    assert "so that another task runs" in seen
    assert "for_task" not in seen
    assert "task-2" not in seen
    assert "task-2" in told(None, stop)


def test_events_about_gpus_name_tasks_and_programs_only_to_their_owner() -> None:
    blamed = GpuBlamed(1, GpuId("GPU-1"), NodeId("n1"), Blame("rival", "secret.py", TaskId(2), 1))
    ill = GpuHealthChanged(
        1, GpuId("GPU-1"), NodeId("n1"), Health.TRUSTED, Health.QUARANTINED, "failures", "task-2 (secret.py)"
    )
    drained = NodeDraining(at=1, node_id=NodeId("n1"), reason="after task-2 (secret.py)")
    seen = told(("lab",), blamed, ill, drained)
    assert seen.count("event: ") == 3
    for word in ("rival", "secret", "task-2"):
        assert word not in seen
    assert '"program":"secret.py"' in told(("rival",), blamed)
    assert told(("rival",), blamed).count("event: ") == 1


def test_tokens_are_for_readers_of_all_tenants() -> None:
    revoked = TokenRevoked(at=1, token_id=TokenId("abc"))
    assert told(("lab",), revoked) == ""
    assert "abc" in told(None, revoked)


def test_the_index_stands_at_the_last_event_that_a_reader_gets() -> None:
    seen = told(
        ("lab",), NodeResumed(at=1, node_id=NodeId("n1")), TasksCancelled(at=1, task_ids=(TaskId(2),))
    )
    assert seen.endswith('"node":"n1"}\nid: 5\n\n')


def test_each_event_is_encoded_once_for_all_its_readers(monkeypatch) -> None:
    encoded = []
    group = CommittedGroup(index=5, events=(TasksCancelled(at=1, task_ids=(TaskId(1), TaskId(2))),))
    told_group = ToldGroup(group, state_of_two())
    monkeypatch.setattr(
        "dgpu.service.views.events._line",
        lambda index, event, facts: encoded.append(facts["count"]) or b"event: x\n",
    )
    for tenants in (("lab",), ("lab", "third"), ("third",), ("lab",)):
        told_group.text(tenants)
    assert encoded == [1], "rival has no reader"


async def test_a_reader_that_comes_back_too_late_for_its_owner_is_told_to_read_again() -> None:
    """The task of an old event has left the memory: whether the reader may see it is unknown."""
    views = Views(ClusterState())
    gone = TasksCancelled(at=1, task_ids=(TaskId(1),))
    views.recent.append(CommittedGroup(index=1, events=(gone,)))
    views.last_index = 1
    feed = EventFeed(views)
    bound, every = feed.stream(("lab",), 0, 60), feed.stream(None, 0, 60)
    assert (await anext(bound)).startswith(b"event: lagged\n")
    assert b"task-1" in await anext(every)
    with pytest.raises(OwnerUnknown):
        ToldGroup(CommittedGroup(index=1, events=(gone,)), ClusterState()).text(("lab",))
    await bound.aclose()
    await every.aclose()


async def test_a_quiet_reader_learns_the_index_with_the_beat() -> None:
    """Else a tenant without events would have to read everything again after a short loss."""
    views = Views(state_of_two())
    stream = EventFeed(views).stream(("third",), None, 0.01)
    await anext(stream)
    views.on_group(CommittedGroup(index=7, events=(TasksForgotten(at=1, task_ids=()),)))
    beat = await asyncio.wait_for(anext(stream), 10)
    assert beat == b": still here\nid: 7\n\n"
    await stream.aclose()


def test_a_flood_of_one_tenant_hides_no_changed_task_of_another() -> None:
    changed = ChangedTasks()
    changed.note(range(1_000), "rival")
    changed.note((5_000,), "lab")
    assert changed.of(("lab",)) == ([5_000], False)
    assert changed.of(("rival",)) == (list(range(MAX_CHANGED)), True)
    assert changed.of(None) == (list(range(MAX_CHANGED)), True)
    assert changed.of(("third",)) == ([], False)
