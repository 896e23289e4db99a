"""Which lines sleep for which refusal, and which line is next in order.

Only `wake_*` opens a bed. Waking too much costs time. Waking too little is a bug, and the property tests find it: they
compare each pass with a pass on a state in which every line is awake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from dgpu.core.index.account import Account
from dgpu.core.index.bed import Bed, BedKey, Offers
from dgpu.core.index.line import Ageing, KnownShape, Line, Turn
from dgpu.core.index.room import Room, whole
from dgpu.core.refusals import Refusal, Scope
from dgpu.core.rules.fit import fits

_AWAKE: Final[BedKey] = ("awake",)
# The scope that may be lifted, with the pool or the tenant that changed if the scope is of one of these.
Change: TypeAlias = tuple[Scope, str | None]
# Local names: a lookup of an enum member costs as much as a call.
_ROOM: Final = Scope.ROOM
_POOL: Final = Scope.POOL
_TENANT: Final = Scope.TENANT
_GUARANTEE: Final = Scope.GUARANTEE
_OTHER: Final = Scope.OTHER
_WORKER: Final = Scope.WORKER
_OF_ONE: Final = (_POOL, _TENANT, _WORKER)
_OF_DEMAND: Final = (_ROOM, _OTHER)
# In place of the level that a task must exceed to take a reservation slot.
FREE_SLOT: Final = -(1 << 62)  # a slot is free
NO_SLOT: Final = 1 << 62


class Passable:
    """Whether lines may pass a reservation of a node; see rules.access."""

    __slots__ = ("_level", "_window_ms")

    def __init__(self, level: int, window_ms: int) -> None:
        self._level = level  # the lowest level of the node's reservations
        self._window_ms = window_ms  # their longest window

    def by(self, bed: Bed) -> bool:
        first = bed.first()
        if first is None or first.listed is None:
            return bool(bed.tried)  # its lines are out of order for now
        counts_host = bool(
            first.demand.cpus_milli or first.demand.ram_mb
        )  # reservations leave cpus and ram free until they begin
        return (
            first.reserved > 0
            or counts_host
            or first.lasts_ms <= self._window_ms
            or -first.listed[0] > self._level
        )


class Beds:
    __slots__ = (
        "_awake",
        "_beds",
        "_by_change",
        "_made",
        "_of_gpus",
        "_offers",
    )

    def __init__(self) -> None:
        self._offers = Offers()
        self._of_gpus = Offers()  # of beds that need whole GPUs
        self._awake = Bed(_AWAKE, 0)
        self._made = 0  # number of beds created
        self._beds: dict[BedKey, Bed] = {}
        self._by_change: dict[Change, dict[BedKey, Bed]] = {}  # the same beds, by the change that opens them

    def copy_empty(self, twin: Beds) -> dict[Bed, Bed]:
        """Creates the same beds in an empty twin; returns the copy of each bed."""
        copies = {self._awake: twin._awake}
        for key, bed in self._beds.items():
            copied = copies[bed] = twin._bed(key)
            copied.is_open, copied.for_slot, copied.refused = bed.is_open, bed.for_slot, bed.refused
        return copies

    def offer_open(self) -> None:
        """Called when the lines of a copy are in their beds."""
        for bed in self.all():
            bed.list_all()
            if bed.is_open:
                self._offer(bed)

    def all(self) -> Iterable[Bed]:
        return (self._awake, *self._beds.values())

    def of(self, scope: Scope, of: str | None = None) -> Iterable[Bed]:
        """The beds of a scope; of a pool or a tenant, if the scope has these."""
        return self._by_change.get((scope, of), _NO_BEDS).values()

    def discard(self) -> None:
        for bed in self.all():
            bed.discard()

    # lines

    def new_line(self, known: KnownShape, lasts_ms: int, ageing: Ageing) -> Line:
        """It is awake."""
        line = Line(known, lasts_ms, ageing, self._awake)
        self._awake.lines[line] = None
        return line

    def wake_line(self, line: Line) -> None:
        if line.bed is not self._awake:
            self._move(line, self._awake)

    def leave(self, line: Line) -> None:
        bed = line.bed
        bed.leave(line)
        if not bed.lines and bed is not self._awake:
            bed.discard()
            del self._beds[bed.key]
            del self._kin(bed.key)[bed.key]
            bed.is_open = False

    def list_line(self, line: Line) -> None:
        """Called after the head of the line changed."""
        bed = line.bed
        if bed.list_line(line):
            if bed.is_open:
                self._offer(bed)
            elif line.listed is not None and line.listed < bed.refused:
                # The line is before the refused line: a higher level may pass reservations.
                self.wake(bed)

    def move_up(self, line: Line) -> None:
        """The share of its tenant fell below the share of others."""
        if line.head and line.bed.list_line(line) and line.bed.is_open:
            self._offer(line.bed)

    def reorder(self) -> None:
        """The rule for levels changed."""
        self._offers, self._of_gpus = Offers(), Offers()
        for bed in self.all():
            bed.list_all()
            bed.offered = None
            self.wake(bed)

    # the pass

    def any_awake(self, idle_milli: int) -> bool:
        return bool(self._offers) or (idle_milli > 0 and bool(self._of_gpus))

    def any_above(self, slot_level: int) -> bool:
        """Whether a line that waits for GPUs may take a reservation slot, although no GPU is idle."""
        first = self._of_gpus.first()
        return first is not None and _is_above(first.listed, slot_level)

    def first_awake(self, slot_level: int, idle_milli: int) -> Line | None:
        """The next line in order to try. `slot_level`: a task above this level may take a reservation slot."""
        line = self._first_of(self._offers, slot_level, idle_milli)
        other = self._first_of(self._of_gpus, slot_level, idle_milli)
        if line is None or other is None:
            return other if line is None else line
        return other if other.precedes(line) else line

    def _first_of(self, offers: Offers, slot_level: int, idle_milli: int) -> Line | None:
        while (line := offers.first()) is not None:
            bed = line.bed
            if bed is self._awake:
                if not self._is_refused(line):
                    return line
            elif _is_above(line.listed, slot_level):
                return line
            elif bed.for_slot:
                bed.close()
            elif bed.gpus_milli <= idle_milli:
                return line
            elif idle_milli:
                offers.close_larger(idle_milli, slot_level)
            else:
                return None  # these beds stay open: the next idle GPU finds the first of them
        return None

    def _is_refused(self, line: Line) -> bool:
        """A line before it with the same demand was refused: this line joins its bed, to be tried if that is open."""
        bed = None if line.shape.app else self._beds.get(room_key(line))
        if bed is None or line.listed is None or line.listed < bed.refused:
            return False  # it may pass reservations that the refused line may not
        self._move(line, bed)
        return True

    def sleep(self, line: Line, refusal: Refusal, slot_level: int) -> None:
        """Only a change that may lift the refusal wakes the line, together with all lines of the same refusal.
        `slot_level`: the next lines of the bed above this level may need a reservation slot.
        """
        bed = self._bed(bed_key(line, refusal))
        turn = line.turn()
        if line.bed is not bed:
            self._move(line, bed)
        if turn is not None:
            bed.refused = turn
        if refusal.scope is _ROOM and _is_above(turn, slot_level):
            bed.set_aside(line)
            bed.is_open = bed.for_slot = True
            self._offer(bed)
        else:
            bed.close()

    # changes that may lift a refusal

    def wake_all(self) -> None:
        for bed in self._beds.values():
            self.wake(bed)

    def wake_for_room(self, room: Room, passable: Passable) -> None:
        """A node has more to give: beside its reservations, or for lines that may pass some of them."""
        seen = whole(room) if room.holds else room
        for bed in self.of(_ROOM):
            if (bed.is_open and not bed.for_slot) or not fits(seen, bed.key[1]):
                continue
            if not room.holds or fits(room, bed.key[1]) or passable.by(bed):
                self.wake(bed)

    def retry(self, bed: Bed, *, lets_in: bool) -> None:
        """`lets_in`: the rule that closed the bed no longer refuses its first line."""
        if lets_in:
            self.wake(bed)
        elif (first := bed.first()) is not None and first.listed is not None:
            bed.refused = first.listed
            bed.close()

    def wake_for_tenant(self, account: Account) -> None:
        """The tenant uses less, or its limits changed."""
        for bed in self.of(_TENANT, account.tenant_id):
            self.wake(bed)

    def wake_for_workers(self, app_id: str) -> None:
        """A worker of the app changed, or has a free slot."""
        for bed in self.of(_WORKER, app_id):
            self.wake(bed)

    def wake_others(self) -> None:
        """After any change, a share may get a GPU on which its claim is smaller."""
        for bed in self.of(_OTHER):
            self.wake(bed)

    def wake_for_slot(self, slot_level: int) -> None:
        """Lines above this level may take a reservation slot: the first in order that may reserve gets it."""
        if slot_level == NO_SLOT:
            return
        for bed in self.of(_ROOM):
            if not bed.is_open or bed.for_slot:
                bed.close()
                first = bed.first()
                if first is not None and _is_above(first.listed, slot_level):
                    bed.is_open = bed.for_slot = True
                    self._offer(bed)

    def wake(self, bed: Bed) -> None:
        bed.put_back()
        bed.is_open, bed.for_slot = True, False
        self._offer(bed)

    def _offer(self, bed: Bed) -> None:
        """The bed was opened, or its first line may come earlier now."""
        (self._of_gpus if bed.gpus_milli else self._offers).offer(bed)

    def _move(self, line: Line, bed: Bed) -> None:
        self.leave(line)
        bed.enter(line)
        if bed.is_open:
            self._offer(bed)

    def _bed(self, key: BedKey) -> Bed:
        bed = self._beds.get(key)
        if bed is None:
            self._made += 1
            gpus_milli = key[1].whole_milli if key[0] in _OF_DEMAND else 0
            bed = self._beds[key] = self._kin(key)[key] = Bed(key, self._made, gpus_milli)
        return bed

    def _kin(self, key: BedKey) -> dict[BedKey, Bed]:
        """The beds that open with the same kind of change."""
        scope: Scope = key[0]
        return self._by_change.setdefault((scope, key[1] if scope in _OF_ONE else None), {})


_NO_BEDS: Final[dict[BedKey, Bed]] = {}


def _is_above(turn: Turn | None, level: int) -> bool:
    return turn is not None and -turn[0] > level


def bed_key(line: Line, refusal: Refusal) -> BedKey:
    """Lines share a bed if every rule of the refusal's scope treats them alike. A line with a reservation has its own
    bed: it may pass where others may not.
    """
    scope, claim = refusal.scope, line.claim
    if scope is _ROOM:
        return room_key(line)
    if scope is _WORKER:
        return (scope, line.shape.app, line.shape.model)
    own = line.known.shape_id if line.reserved else 0
    if scope is _POOL:
        return (scope, line.pool.pool, claim.milli, line.lasts_ms, own)
    if scope is _TENANT:
        return (scope, line.account.tenant_id, claim.milli, claim.memory_mb, line.lasts_ms, own)
    if scope is _GUARANTEE:
        return (scope, line.account.tenant_id, claim.milli)
    return (scope, line.demand, line.account.tenant_id, line.pool.pool, line.lasts_ms, own)


def room_key(line: Line) -> BedKey:
    """A line of a tenant with a guarantee may pass reservations where those of other tenants may not."""
    own = line.known.shape_id if line.reserved else 0
    tenant_id = line.account.tenant_id if line.account.guaranteed_milli else ""
    return (_ROOM, line.demand, line.pool.pool, line.lasts_ms, own, tenant_id)
