"""When does a node have room for a task, if what runs there ends when it should and nothing else comes?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from dgpu.core.index.room import Card, Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, LeaseId
from dgpu.core.model.lease import Lease
from dgpu.core.model.reservation import Hold
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.durations import NEVER, UNKNOWN
from dgpu.core.rules.fit import accepts, holds, milli_on


class Taken(NamedTuple):
    """What the reservation of another task will hold of the node, and until when."""

    hold: Hold
    until: int


class Cluster(NamedTuple):
    """What is asked of the rest of the state."""

    leases: Mapping[LeaseId, Lease]
    holders: Mapping[GpuId, tuple[LeaseId, ...]]
    ends: Mapping[LeaseId, int]  # as far as they are known
    ends_at: Callable[[LeaseId], int]  # all others
    most_leases: int


class Opening(NamedTuple):
    at: int  # 0: now; from UNKNOWN on: nobody knows, the more cards of which the larger; from NEVER on: never
    gpu_ids: tuple[GpuId, ...]


def opens_at(room: Room, demand: Demand, cluster: Cluster) -> int | None:
    """When alone, for an index of many rooms."""
    host_at = _host_at(room, demand, cluster, ()) if _may_hold(room, demand) else None
    if host_at is None or not demand.gpus:
        return host_at
    times = [at for at in _card_times(room, _suiting(room, demand), demand, cluster) if at is not None]
    if len(times) < demand.gpus:
        return None
    times.sort()
    return _latest(host_at, times[: demand.gpus])


def opening(room: Room, demand: Demand, cluster: Cluster, taken: Sequence[Taken] = ()) -> Opening | None:
    """None: not even if it were empty. Of cards that would do, those that are free first are meant."""
    host_at = _host_at(room, demand, cluster, taken) if _may_hold(room, demand) else None
    if host_at is None or not demand.gpus:
        return None if host_at is None else Opening(host_at, ())
    cards = _suiting(room, demand)
    found = zip(_card_times(room, cards, demand, cluster), cards, strict=True)
    times = [(at, card[1], card[2]) for at, card in found if at is not None]
    if len(times) < demand.gpus:
        return None
    if taken:
        times = _after(times, taken)
    times.sort()
    chosen = times[: demand.gpus]
    by_place = sorted([(place, gpu_id) for _, place, gpu_id in chosen])
    at = _latest(host_at, [at for at, _, _ in chosen])
    return Opening(at, tuple([gpu_id for _, gpu_id in by_place]))


def _may_hold(room: Room, demand: Demand) -> bool:
    if not room.ready or (demand.constraints and not holds(room.labels, demand.constraints)):
        return False
    return len(room.cards) >= demand.gpus


def _suiting(room: Room, demand: Demand) -> Collection[Card]:
    """Where its cards are all alike: all of them, or none."""
    cards = room.cards.values()
    if room.mixed:
        return [card for card in cards if accepts(card, demand)]
    return cards if accepts(next(iter(cards)), demand) else ()


def _latest(host_at: int, times: list[int]) -> int:
    """Of times in order."""
    latest = max(host_at, times[-1])
    if latest < UNKNOWN or latest >= NEVER:
        return latest
    return UNKNOWN + (host_at >= UNKNOWN) + len(times) - bisect_left(times, UNKNOWN)


def _after(times: list[tuple[int, int, GpuId]], taken: Sequence[Taken]) -> list[tuple[int, int, GpuId]]:
    """Once the reservations that come first are over."""
    until: dict[GpuId, int] = {}
    for each in taken:
        for gpu_id in each.hold.gpu_ids:
            until[gpu_id] = max(until.get(gpu_id, 0), each.until)
    return [(max(at, until.get(gpu_id, 0)), place, gpu_id) for at, place, gpu_id in times]


def _card_times(
    room: Room, cards: Collection[Card], demand: Demand, cluster: Cluster
) -> Sequence[int | None]:
    """When each is free. Nothing is done more often when reservations are planned."""
    if demand.share_milli < WHOLE_MILLI:
        return [_share_at(room, card, demand, cluster) for card in cards]
    holders_of, ends = cluster.holders, cluster.ends
    times = []
    for card in cards:
        holders = holders_of.get(card[2])
        if holders is None:
            at = 0
        elif len(holders) > 1 or (at := ends.get(holders[0], -1)) < 0:
            at = max(map(cluster.ends_at, holders))
        times.append(at)
    return times


def _card_at(card: Card, cluster: Cluster) -> int:
    holders = cluster.holders.get(card.id)
    return 0 if holders is None else max(map(cluster.ends_at, holders))


def _share_at(room: Room, card: Card, demand: Demand, cluster: Cluster) -> int | None:
    """When enough of a card is free that others share."""
    need = milli_on(demand, card.usable_mb)
    if need > WHOLE_MILLI:
        return None
    holders = cluster.holders.get(card.id)
    if holders is None:
        return 0
    if card.id not in room.used:
        return _card_at(card, cluster)
    used = room.used[card.id]
    milli, memory_mb = used.milli, used.memory_mb + card.over_mb
    at = 0
    for over_at, lease_id in [(0, LeaseId(0)), *sorted((cluster.ends_at(each), each) for each in holders)]:
        if lease_id:
            lease = cluster.leases[lease_id]
            milli -= lease.share_milli
            memory_mb -= lease.gpu_memory_mb
        at = over_at
        free = WHOLE_MILLI - milli
        if card.usable_mb:
            free = min(free, (card.usable_mb - memory_mb) * WHOLE_MILLI // card.usable_mb)
        if need <= free:
            return at
    return at


def _host_at(room: Room, demand: Demand, cluster: Cluster, taken: Sequence[Taken]) -> int | None:
    """When cpus, ram and the number of leases suffice: beside what other reservations hold, or once those are over,
    whichever is sooner. (A promise made by one of the two must hold when the other becomes possible, too.)
    """
    counts_host = bool(demand.cpus_milli or demand.ram_mb)
    if not counts_host and len(room.leases) < cluster.most_leases:
        return 0
    cpus_milli = demand.cpus_milli + (sum(each.hold.cpus_milli for each in taken) if demand.cpus_milli else 0)
    ram_mb = demand.ram_mb + (sum(each.hold.ram_mb for each in taken) if demand.ram_mb else 0)
    beside = _freed_at(room, cpus_milli, ram_mb, cluster)
    if beside == 0 or not taken:
        return beside
    after = _freed_at(room, demand.cpus_milli, demand.ram_mb, cluster)
    if after is None:
        return None
    after = max([after, *(each.until for each in taken if each.hold.cpus_milli or each.hold.ram_mb)])
    return after if beside is None else min(beside, after)


def _freed_at(room: Room, cpus_milli: int, ram_mb: int, cluster: Cluster) -> int | None:
    left_milli = cpus_milli - room.cpus_free_milli if cpus_milli else 0
    left_mb = ram_mb - room.ram_free_mb if ram_mb else 0
    number = len(room.leases)
    if left_milli <= 0 and left_mb <= 0 and number < cluster.most_leases:
        return 0
    for over_at, lease_id in sorted((cluster.ends_at(each), each) for each in room.leases):
        lease = cluster.leases[lease_id]
        left_milli -= lease.cpus_milli
        left_mb -= lease.ram_mb
        number -= 1
        if left_milli <= 0 and left_mb <= 0 and number < cluster.most_leases:
            return over_at
    return None
