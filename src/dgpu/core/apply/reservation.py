"""Applies events to reservations."""

from __future__ import annotations

from dgpu.core.events import TasksReserved
from dgpu.core.model.ids import NodeId
from dgpu.core.model.reservation import Reservation
from dgpu.core.state import ClusterState


def apply_reserved(state: ClusterState, event: TasksReserved) -> None:
    for task_id in event.dropped:
        state.let_go(task_id)
    for made in event.made:
        known = state.reservations.get(made.task_id)
        if known is None:
            state.reserve(made)
        else:
            _move(state, known, made)
        if not made.at:
            _let_pass_others(state, made)
    state.bookings.changed()


def _move(state: ClusterState, known: Reservation, made: Reservation) -> None:
    state.reservations[made.task_id] = made
    if known.places != made.places:
        stays = {place.node_id for place in made.places}
        for place in known.places:
            if place.node_id not in stays:
                state.rooms.keep(place.node_id, made.task_id, None)
        state.keep(made)
    # Other tasks may pass the reservation now.
    state.note_freed(state.queue.shapes[state.tasks[made.task_id].shape_id].account)
    for place in made.places:
        state.rooms.touch(place.node_id)
        state.rooms.note_improved(place.node_id)


def _let_pass_others(state: ClusterState, made: Reservation) -> None:
    """There is one more reservation of unknown time: reservations of lower levels may hold less now."""
    for other in state.reservations.values():
        if not other.at and other is not made:
            state.stirred = True
            for place in other.places:
                state.rooms.note_improved(place.node_id)


def forget_reservations_on(state: ClusterState, node_id: NodeId) -> None:
    """Drops the reservations on a removed node."""
    for made in list(state.reservations.values()):
        if any(place.node_id == node_id for place in made.places):
            state.let_go(made.task_id)
