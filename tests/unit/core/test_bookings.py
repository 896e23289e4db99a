"""How often reservations are looked for, and where."""

from __future__ import annotations

from dgpu.core.index.bookings import IN_PASSING, THOROUGH, Bookings, Pace, Soonest
from dgpu.core.index.room import Room
from dgpu.core.model.ids import NodeId


def test_after_a_look_in_vain_nobody_looks_for_a_second_unless_somebody_comes() -> None:
    bookings = Bookings()
    assert not bookings.rests(5_000, 7), "nobody has looked yet"
    bookings.fruitless = (5_000, 7)
    assert bookings.rests(5_000, 7)
    assert bookings.rests(5_999, 7)
    assert not bookings.rests(6_000, 7)
    assert not bookings.rests(5_001, 8), "a task came"
    assert not bookings.rests(4_999, 7), "a clock that was set back holds nobody up"
    assert bookings.copy().rests(5_001, 7)


class Nodes:
    """So many nodes, each with the time at which it has room; `looked` counts how often one is asked."""

    def __init__(self, times: list[int]) -> None:
        self.rooms = {
            NodeId(f"n{number:03d}"): Room(NodeId(f"n{number:03d}")) for number in range(len(times))
        }
        self.times: dict[str, int | None] = dict(zip(self.rooms, times, strict=True))
        self.looked = 0

    def look(self, room: Room) -> int | None:
        self.looked += 1
        return self.times[room.node_id]

    def first(self, index: Soonest, number: int, pace: Pace) -> list[tuple[int, str]]:
        self.looked = 0
        return index.first(number, self.rooms, self.look, (), pace)


def test_the_index_looks_at_a_node_again_before_it_is_believed() -> None:
    nodes = Nodes([50, 10, 20, 30])
    index = Soonest(dict(nodes.times), 0)
    nodes.times["n001"] = 40
    assert nodes.first(index, 1, IN_PASSING) == [(20, "n002")]
    assert nodes.looked == 2
    assert nodes.first(index, 2, IN_PASSING) == [(20, "n002"), (30, "n003")]
    nodes.times["n003"] = None
    assert nodes.first(index, 3, IN_PASSING) == [(20, "n002"), (40, "n001"), (50, "n000")]


def test_where_all_has_changed_the_best_of_a_few_is_good_enough_in_passing_and_not_when_there_is_time() -> (
    None
):
    nodes = Nodes([10] * 100)
    index = Soonest(dict(nodes.times), 0)
    nodes.times = {node_id: 1_000 - number for number, node_id in enumerate(nodes.times)}
    assert nodes.first(index, 1, IN_PASSING) == [(993, "n007")]
    assert nodes.looked == IN_PASSING.looks
    assert nodes.first(index, 1, THOROUGH) == [(901, "n099")]
    assert nodes.first(index, 1, IN_PASSING) == [(901, "n099")]
    assert nodes.looked == 1


def test_a_gang_gets_as_many_nodes_as_it_needs_however_many_changed() -> None:
    nodes = Nodes([10] * 40)
    index = Soonest(dict(nodes.times), 0)
    nodes.times = dict.fromkeys(nodes.times, 20)
    assert len(nodes.first(index, 30, IN_PASSING)) == 30


def test_what_has_something_idle_is_noticed_first_and_other_changes_a_few_at_a_time() -> None:
    nodes = Nodes([100] * 50)
    index = Soonest(dict(nodes.times), 0)
    nodes.times.update({"n040": 5, "n000": 7, "n020": 6})
    rooms = [*nodes.rooms.values()]
    index.catch_up(rooms, [rooms[40]], nodes.look, IN_PASSING)
    assert nodes.first(index, 2, IN_PASSING) == [(5, "n040"), (7, "n000")]
    index.catch_up(rooms, [], nodes.look, THOROUGH)
    assert nodes.first(index, 2, IN_PASSING) == [(5, "n040"), (6, "n020")]
