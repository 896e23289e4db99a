"""What events do to reservations."""

from __future__ import annotations

from dgpu.core.events import TasksReserved
from dgpu.core.model.ids import NodeId
from dgpu.core.model.reservation import Reservation
from dgpu.core.rules.backfill import level_of, window_ms
from dgpu.core.state import ClusterState


def apply_reserved(state: ClusterState, event: TasksReserved) -> None:
    due, last = state.bookings.due, state.waiting.last_reserved
    for task_id in event.dropped:
        state.let_go(task_id)
    state.bookings.due, state.waiting.last_reserved = due, last  # who planned this knows
    for made in event.made:
        known = state.reservations.get(made.task_id)
        state.reservations[made.task_id] = made
        state.bookings.chances = None
        if known is None or known.places != made.places:
            _leave(state, known, made)
            state.keep(made)
        if known is None:
            _let_ask(state, made)
        if known is not None and (known.at or made.at) and (made.at or known.at + 1) > known.at:
            # Later than it was: more may run ahead of it.
            for place in made.places:
                room = state.rooms.by_node.get(place.node_id)
                if room is not None and room.ready:
                    state.rooms.improved[place.node_id] = room
    state.rooms.kept_ms = max([window_ms(each, event.at) for each in state.reservations.values()], default=0)


def _let_ask(state: ClusterState, made: Reservation) -> None:
    """One more holds a reservation: its own kind may have that, and if it stands below all others, so may those above
    it.
    """
    level = level_of(state, made.task_id)
    if all(level < level_of(state, other) for other in state.reservations if other != made.task_id):
        for lane in state.waiting.lanes.values():
            for crowd in lane.crowds.values():
                crowd.refused_kept = -1
    state.waiting.lines[state.tasks[made.task_id].shape_id].crowd.refused_kept = -1


def forget_reservations_on(state: ClusterState, node_id: NodeId) -> None:
    """The node is gone."""
    for made in list(state.reservations.values()):
        if any(place.node_id == node_id for place in made.places):
            state.let_go(made.task_id)


def _leave(state: ClusterState, known: Reservation | None, made: Reservation) -> None:
    stays = {place.node_id for place in made.places}
    for place in known.places if known is not None else ():
        if place.node_id not in stays:
            state.rooms.keep(place.node_id, made.task_id, None)
