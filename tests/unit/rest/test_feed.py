"""The stream of events: shared, resumable, and never waiting for a slow listener."""

from __future__ import annotations

import asyncio

from dgpu.client.stream import EventParser
from dgpu.core import events
from dgpu.core.events import Event, GpuHealthChanged, NodeResumed, TasksForgotten, TasksSubmitted
from dgpu.core.model.health import Health
from dgpu.core.model.ids import GpuId, NodeId, TaskId, TenantId
from dgpu.core.model.task import Pool, Shape, TaskSpec
from dgpu.core.state import ClusterState
from dgpu.service.event_texts import SILENT, TEXTS
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.rest import feed
from dgpu.service.rest.feed import EventFeed
from dgpu.service.views.events import event_stream_text
from dgpu.service.views.views import Views


def group(index: int, *told: Event) -> CommittedGroup:
    return CommittedGroup(index=index, events=told or (NodeResumed(at=index, node_id=NodeId(f"n{index}")),))


async def first(stream, pieces: int) -> list[bytes]:
    return [await asyncio.wait_for(anext(stream), 10) for _ in range(pieces)]


def test_every_event_has_a_name_or_is_silent_on_purpose() -> None:
    def kinds(of: type[Event]) -> set[type[Event]]:
        return {found for kind in of.__subclasses__() for found in {kind, *kinds(kind)}}

    assert {*TEXTS, *SILENT} == {
        kind for kind in kinds(events.Event) if kind.__module__ == "dgpu.core.events"
    }


def test_the_environment_of_a_task_is_not_told() -> None:
    shape = Shape(tenant_id=TenantId("t"), pool=Pool.BATCH, priority=1, gpus=0)
    spec = TaskSpec(shape=shape, detail=b'{"command":"x","env":{"K":"s3cret"}}')
    text = event_stream_text(group(1, TasksSubmitted(at=1, first_id=TaskId(1), entries=((3, spec),))))
    assert b"s3cret" not in text
    assert b'"count":3' in text


def test_a_gpu_that_leaves_service_is_told_as_critical_with_its_evidence() -> None:
    def told(after: Health) -> bytes:
        step = GpuHealthChanged(
            1, GpuId("GPU-1"), NodeId("n1"), Health.PROBING, after, "xid", "Xid 79: off the bus"
        )
        return event_stream_text(group(1, step))

    assert b'"severity":"critical"' in told(Health.QUARANTINED)
    assert b'"evidence":"Xid 79: off the bus"' in told(Health.QUARANTINED)
    assert b'"severity":"critical"' in told(Health.OUT)
    assert b'"severity":"info"' in told(Health.PAROLE)


def test_the_index_stands_at_the_last_event_of_a_group_only() -> None:
    text = event_stream_text(
        group(7, NodeResumed(at=1, node_id=NodeId("a")), NodeResumed(at=1, node_id=NodeId("b")))
    )
    assert text.count(b"\n\n") == 2
    assert text.endswith(b"id: 7\n\n")
    assert text.count(b"id: ") == 1


def test_housekeeping_is_not_told() -> None:
    assert event_stream_text(group(1, TasksForgotten(at=1, task_ids=(TaskId(1),)))) == b""


async def test_listeners_get_what_happens_and_nobody_listens_after_they_left() -> None:
    views = Views(ClusterState())
    events_feed = EventFeed(views)
    one, two = events_feed.stream(None, None, 60), events_feed.stream(None, None, 60)
    await first(one, 1)
    await first(two, 1)
    views.on_group(group(1))
    assert (await first(one, 1)) == (await first(two, 1))
    await one.aclose()
    await two.aclose()
    assert events_feed.listeners == 0
    assert views._listeners == []


async def test_a_listener_that_comes_back_gets_what_it_missed() -> None:
    views = Views(ClusterState())
    for index in range(1, 5):
        views.on_group(group(index))
    stream = EventFeed(views).stream(None, 2, 60)
    (opening,) = await first(stream, 1)
    assert b"id: 3\n" in opening
    assert b"id: 4\n" in opening
    assert b"id: 2\n" not in opening
    await stream.aclose()


async def test_one_that_was_away_too_long_is_told_so(monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.views.views.MAX_RECENT_GROUPS", 2)
    views = Views(ClusterState())
    for index in range(1, 9):
        views.on_group(group(index))
    stream = EventFeed(views).stream(None, 2, 60)
    (opening,) = await first(stream, 1)
    assert opening.startswith(b"event: lagged\n")
    await stream.aclose()


async def test_a_slow_listener_costs_a_bounded_amount_and_is_told(monkeypatch) -> None:
    monkeypatch.setattr(feed, "MAX_UNREAD", 10)
    views = Views(ClusterState())
    events_feed = EventFeed(views)
    stream = events_feed.stream(None, None, 60)
    await first(stream, 1)
    for index in range(1, 100):
        views.on_group(group(index))
    (listener,) = events_feed._all()
    assert len(listener.pieces) <= 10
    (piece,) = await first(stream, 1)
    assert piece.startswith(b"event: lagged\n")
    await stream.aclose()


async def test_silence_is_filled_with_comments() -> None:
    stream = EventFeed(Views(ClusterState())).stream(None, None, 0.01)
    opening, beat = await first(stream, 2)
    assert opening.startswith(b"retry:")
    assert beat.startswith(b":")
    await stream.aclose()


def test_the_sdk_reads_what_the_feed_writes() -> None:
    parser = EventParser()
    lines = event_stream_text(group(7)).decode().split("\n")
    found = [event for line in lines if (event := parser.on_line(line)) is not None]
    assert [(event.id, event.type, event.facts["node"]) for event in found] == [("7", "node_resumed", "n7")]
