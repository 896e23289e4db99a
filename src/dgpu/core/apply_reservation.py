"""What events do to reservations."""

from __future__ import annotations

from dgpu.core.events import TasksReserved
from dgpu.core.ids import NodeId
from dgpu.core.reservation import Reservation
from dgpu.core.state import ClusterState


def apply_reserved(state: ClusterState, event: TasksReserved) -> None:
    due, last = state.bookings.due, state.waiting.last_reserved
    for task_id in event.dropped:
        state.let_go(task_id)
    state.bookings.due, state.waiting.last_reserved = due, last  # who planned this knows
    for made in event.made:
        known = state.reservations.get(made.task_id)
        _leave(state, known, made)
        state.reservations[made.task_id] = made
        state.keep(made)
        if known is None or not known.at or not 0 < made.at <= known.at:
            state.rooms.kept_version += 1  # what is made earlier lets nobody in who was kept out
        if known is not None and (known.at or made.at) and (made.at or known.at + 1) > known.at:
            # Later than it was: more may run ahead of it.
            for place in made.places:
                room = state.rooms.by_node.get(place.node_id)
                if room is not None and room.ready:
                    state.rooms.improved[place.node_id] = room


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
