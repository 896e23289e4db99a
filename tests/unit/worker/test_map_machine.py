"""The order and the bounds of `map`, without a scheduler."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dgpu.functions.mapping import MapMachine, MapOptions


def run(machine: MapMachine, choose) -> tuple[list, int]:
    """Drives it with results in any order; the values, and the largest number in flight."""
    ids = itertools.count()
    found, largest = [], 0
    while not machine.is_over:
        batch = machine.next_batch()
        if batch is not None:
            machine.on_submitted(str(next(ids)) for _ in range(batch.size))
        largest = max(largest, len(machine.outstanding))
        if machine.outstanding:
            task_id = choose(machine.outstanding)
            machine.on_ended(task_id, int(task_id))
        found += machine.ready()
    return found, largest


@given(some.integers(0, 60), some.integers(1, 30), some.booleans(), some.randoms())
def test_every_item_has_one_result_and_the_bound_holds(count, in_flight, ordered, random) -> None:
    machine = MapMachine(([n] for n in range(count)), {}, MapOptions(ordered=ordered, in_flight=in_flight))
    found, largest = run(machine, random.choice)
    assert sorted(found) == list(range(count))
    assert largest <= in_flight
    if ordered:
        assert found == sorted(found)


def test_large_arguments_travel_alone() -> None:
    large = b"x" * 300_000
    machine = MapMachine([["a"], [large], ["b"]], {}, MapOptions())
    batches = []
    while (batch := machine.next_batch()) is not None:
        batches.append((len(batch.small), batch.large is not None))
        machine.on_submitted([f"{len(batches)}-{number}" for number in range(batch.size)])
    assert batches == [(1, False), (0, True), (1, False)]


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="in_flight is 0, expected at least 1"):
        MapMachine([], {}, MapOptions(in_flight=0))
