"""What is frozen is not kept for ever."""

from __future__ import annotations

import gc
import weakref

from dgpu.service.loop.collector import Collector


class Node:
    other: Node


def cycle() -> Node:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return one


def test_a_frozen_cycle_that_nothing_reaches_any_more_goes_in_the_end() -> None:
    """Freezing again and again without thawing kept every cycle that was reachable at one of those moments."""
    kept = cycle()
    seen = weakref.ref(kept)
    collector = Collector()
    collector.tidy()
    del kept
    try:
        for _ in range(20):
            collector.tidy()
        assert seen() is None
    finally:
        gc.unfreeze()


def test_it_collects_once_after_five_seconds_without_a_record() -> None:
    collector = Collector()
    seen = []
    collector.tidy = lambda: seen.append(1)  # type: ignore[method-assign]
    for _ in range(4):
        collector.on_beat()
    collector.on_append()
    for _ in range(4):
        collector.on_beat()
    assert seen == []
    for _ in range(10):
        collector.on_beat()
    assert seen == [1]


def test_it_also_collects_where_records_are_written_without_a_pause() -> None:
    """A closed connection is a cycle: under steady load all of them would stay."""
    collector = Collector()
    seen = []
    collector.tidy = lambda: seen.append(1)  # type: ignore[method-assign]
    for _ in range(1_000):
        collector.on_append()
        collector.on_beat()
    assert len(seen) == 3
