"""When a node has room for a task, if running tasks end as expected and no other task starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Final

from dgpu.core.index.bookings import Booking
from dgpu.core.index.room import Card, Room, free_beside
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, LeaseId, NodeId
from dgpu.core.model.lease import Lease
from dgpu.core.model.reservation import Place
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.durations import NEVER, UNKNOWN
from dgpu.core.rules.fit import accepts, holds, milli_on
from dgpu.core.state import ClusterState

PART: Final = 0  # part of a GPU, in place of a number of GPUs


class Taken:
    """The part of a node that the reservation of another task will hold, with its begin and end."""

    __slots__ = ("at", "cpus_milli", "gpu_ids", "ram_mb", "until")

    def __init__(self, gpu_ids: tuple[GpuId, ...], cpus_milli: int, ram_mb: int, at: int, until: int) -> None:
        self.gpu_ids = gpu_ids
        self.cpus_milli = cpus_milli
        self.ram_mb = ram_mb
        self.at = at
        self.until = until


class Cluster:
    """The facts about the rest of the state that openings need."""

    __slots__ = ("_at", "_state", "holders", "leases")

    def __init__(self, state: ClusterState, at: int) -> None:
        self._state = state
        self._at = at
        self.leases: Mapping[LeaseId, Lease] = state.leases
        self.holders = state.rooms.holders

    def ends_at(self, lease_id: LeaseId) -> int:
        return self._state.bookings.ends.ends_at(self._state, lease_id, self._at)


def taken_by(booking: Booking, place: Place, at: int) -> Taken:
    """The part of one node that a reservation will hold. Its task lasts as long as its time class, as in access. A late
    reservation keeps its begin: otherwise leases that were to end after it would seem to end before it as time passes.
    """
    demand, lasts = booking.line.demand, booking.line.lasts_ms
    is_known = booking.at > 0 and lasts < UNKNOWN
    until = max(booking.at, at) + lasts if is_known else max(UNKNOWN, lasts)
    return Taken(place.gpu_ids, demand.cpus_milli, demand.ram_mb, booking.at or UNKNOWN, until)


class Times:
    """When a node has the cpus and ram for a demand, and when each suitable GPU is free."""

    __slots__ = ("cards", "host")

    def __init__(self, host: int, cards: list[tuple[int, int, GpuId]]) -> None:
        self.host = host
        self.cards = cards  # sorted, each with the place of the GPU


class Opening:
    __slots__ = ("at", "gpu_ids")

    def __init__(self, at: int, gpu_ids: tuple[GpuId, ...]) -> None:
        self.at = at  # 0: now; from UNKNOWN on: unknown, the more GPUs the larger; from NEVER on: never
        self.gpu_ids = gpu_ids


def cards_at(room: Room, gpus: int, cluster: Cluster) -> int | None:
    """When this many GPUs of a room are free, regardless of which: a lower bound for whole GPUs. `PART`: when any part
    of a GPU is free.
    """
    if gpus == PART:
        return min([_part_at(room, card, cluster) for card in room.cards.values()], default=None)
    if len(room.cards) < gpus:
        return None
    times = sorted([_card_at(card, cluster) for card in room.cards.values()])
    return _latest(0, times[:gpus])


def opening(room: Room, demand: Demand, cluster: Cluster, taken: Sequence[Taken] = ()) -> Opening | None:
    """None: the node has no room even when empty. Prefers the suitable GPUs that are free first."""
    times = times_of(room, demand, cluster, taken)
    return None if times is None else opening_in(times, demand.gpus)


def times_of(room: Room, demand: Demand, cluster: Cluster, taken: Sequence[Taken]) -> Times | None:
    """None: the node has no room even when empty."""
    host = host_at(room, demand, cluster, taken) if _may_hold(room, demand) else None
    if host is None or not demand.gpus:
        return None if host is None else Times(host, [])
    times = _card_times(room, demand, cluster)
    if len(times) < demand.gpus:
        return None
    if taken:
        times = _after(times, taken)
    times.sort()
    return Times(host, times)


def times_on(
    rooms: Sequence[Room], demand: Demand, cluster: Cluster, taken: Mapping[NodeId, Sequence[Taken]]
) -> list[tuple[NodeId, Times]] | None:
    """None: one of the nodes has no room even when empty."""
    found: list[tuple[NodeId, Times]] = []
    for room in rooms:
        times = times_of(room, demand, cluster, taken.get(room.node_id, ()))
        if times is None:
            return None
        found.append((room.node_id, times))
    return found


def opening_in(times: Times, gpus: int, only: Container[GpuId] | None = None) -> Opening | None:
    """On the GPUs that are free first. `only`: on these GPUs."""
    cards = times.cards if only is None else [each for each in times.cards if each[2] in only]
    if len(cards) < gpus:
        return None
    if not gpus:
        return Opening(times.host, ())
    chosen = cards[:gpus]
    by_place = sorted([(place, gpu_id) for _, place, gpu_id in chosen])
    at = _latest(times.host, [at for at, _, _ in chosen])
    return Opening(at, tuple([gpu_id for _, gpu_id in by_place]))


def _may_hold(room: Room, demand: Demand) -> bool:
    if not room.ready or (demand.constraints and not holds(room.labels, demand.constraints)):
        return False
    return len(room.cards) >= demand.gpus


def _suiting(room: Room, demand: Demand) -> Collection[Card]:
    """If all GPUs of the room are alike: all of them, or none."""
    cards = room.cards.values()
    if room.mixed:
        return [card for card in cards if accepts(card, demand)]
    return cards if accepts(next(iter(cards)), demand) else ()


def _latest(host: int, times: list[int]) -> int:
    """The latest of sorted times. If it is unknown, the number of unknown times is added."""
    latest = max(host, times[-1])
    if latest < UNKNOWN or latest >= NEVER:
        return latest
    return UNKNOWN + (host >= UNKNOWN) + len(times) - bisect_left(times, UNKNOWN)


def _after(times: list[tuple[int, int, GpuId]], taken: Sequence[Taken]) -> list[tuple[int, int, GpuId]]:
    """The times after the earlier reservations have ended."""
    until: dict[GpuId, int] = {}
    for each in taken:
        for gpu_id in each.gpu_ids:
            until[gpu_id] = max(until.get(gpu_id, 0), each.until)
    return [(max(at, until.get(gpu_id, 0)), place, gpu_id) for at, place, gpu_id in times]


def _card_times(room: Room, demand: Demand, cluster: Cluster) -> list[tuple[int, int, GpuId]]:
    """When each suitable GPU is free, with its place. GPUs that never have enough are left out."""
    cards = _suiting(room, demand)
    if demand.share_milli == WHOLE_MILLI:
        return [(_card_at(card, cluster), card.place, card.id) for card in cards]
    found = [(_share_at(room, card, demand, cluster), card) for card in cards]
    return [(at, card.place, card.id) for at, card in found if at is not None]


def _card_at(card: Card, cluster: Cluster) -> int:
    leases = cluster.holders.get(card.id)
    if leases is None:
        return 0
    if len(leases) == 1:  # the usual case, without a list
        return cluster.ends_at(leases[0])
    return max([cluster.ends_at(each) for each in leases])


def _part_at(room: Room, card: Card, cluster: Cluster) -> int:
    """When more of a GPU is free than now; 0: some is free now."""
    leases = cluster.holders.get(card.id)
    if leases is None or (card.id in room.used and room.free_milli(card)):
        return 0
    return min([cluster.ends_at(each) for each in leases])


def _share_at(room: Room, card: Card, demand: Demand, cluster: Cluster) -> int | None:
    """When enough of a shared GPU is free."""
    need = milli_on(demand, card.usable_mb)
    if need > WHOLE_MILLI:
        return None
    holders = cluster.holders.get(card.id)
    if holders is None:
        return 0
    if card.id not in room.used:
        return _card_at(card, cluster)
    used = room.used[card.id]
    milli, memory_mb, at = used.milli, used.memory_mb, 0
    for over_at, lease_id in sorted((cluster.ends_at(each), each) for each in holders):
        if need <= free_beside(card, milli, memory_mb):
            break
        lease = cluster.leases[lease_id]
        milli -= lease.share_milli
        memory_mb -= lease.gpu_memory_mb
        at = over_at
    return at


def host_at(room: Room, demand: Demand, cluster: Cluster, taken: Sequence[Taken]) -> int | None:
    """When cpus, ram and the number of leases suffice: beside other reservations or after their end, whichever is
    sooner.
    """
    if not demand.cpus_milli and not demand.ram_mb and not room.is_full:
        return 0
    alone = _freed_at(room, demand.cpus_milli, demand.ram_mb, cluster)
    holds = [each for each in taken if each.cpus_milli or each.ram_mb]
    if alone is None or not holds:
        return alone
    beside = _beside_at(room, demand, cluster, holds, alone)
    after = max([alone, *(each.until for each in holds)])
    return after if beside is None else min(beside, after)


def _beside_at(
    room: Room, demand: Demand, cluster: Cluster, holds: Sequence[Taken], alone: int
) -> int | None:
    """When there is enough for the task and for each reservation from its begin on."""
    at, cpus_milli, ram_mb = alone, demand.cpus_milli, demand.ram_mb
    for each in sorted(holds, key=lambda hold: hold.at):
        cpus_milli += each.cpus_milli if demand.cpus_milli else 0
        ram_mb += each.ram_mb if demand.ram_mb else 0
        freed = _freed_at(room, cpus_milli, ram_mb, cluster)
        if freed is None:
            return None
        if freed > each.at:
            at = max(at, freed)
    return at


def _freed_at(room: Room, cpus_milli: int, ram_mb: int, cluster: Cluster) -> int | None:
    left_milli = cpus_milli - room.cpus_free_milli if cpus_milli else 0
    left_mb = ram_mb - room.ram_free_mb if ram_mb else 0
    number = len(room.leases)
    if left_milli <= 0 and left_mb <= 0 and number < room.max_leases:
        return 0
    for over_at, lease_id in sorted((cluster.ends_at(each), each) for each in room.leases):
        lease = cluster.leases[lease_id]
        left_milli -= lease.cpus_milli
        left_mb -= lease.ram_mb
        number -= 1
        if left_milli <= 0 and left_mb <= 0 and number < room.max_leases:
            return over_at
    return None
