"""The pass: which waiting task starts next, and where.

    order     lines by level, then fair share, then age; only lines that are awake
    admit     pool quota, tenant limits, guarantees
    fit       the best node beside reservations, else one where reservations may be passed
    grant     or reserve: a line that is refused sleeps with its refusal, and its head may get a reservation
    reclaim   borrowed GPUs for which tasks of their own pool wait

The pass keeps no memory of its own: the state holds all facts that steer a decision, and the indexes (queue, rooms,
bookings) only save time.
"""

from __future__ import annotations

from typing import Final

from dgpu.core.apply.table import apply
from dgpu.core.commands import RunPass
from dgpu.core.decide.calls import failed_calls, submit_workers, surplus_workers, take_back
from dgpu.core.decide.learning import typical_due
from dgpu.core.decide.orders import end_broken
from dgpu.core.decide.time import PORTION
from dgpu.core.events import Event
from dgpu.core.index.bed import Bed
from dgpu.core.index.beds import NO_SLOT, Passable
from dgpu.core.index.limits import settle_pools
from dgpu.core.index.line import Line
from dgpu.core.index.room import Room
from dgpu.core.model.ids import TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Pool
from dgpu.core.refusals import NO_ROOM, TASKS_DIFFER, PartTooLarge, Refusal, Scope, WaitsForWarm
from dgpu.core.rules.access import access_of, bookings_in_order, is_favoured
from dgpu.core.rules.admission import admit, free_milli, guarantees, has_quota, lines_of, pool_quota
from dgpu.core.rules.giving import gives_way
from dgpu.core.rules.overtaken import overtaken
from dgpu.core.rules.place import claim_of_spots, granted, granted_slot, place
from dgpu.core.rules.reclaim import stops_due
from dgpu.core.rules.reservations import keep_reservations, reserve, slot_level
from dgpu.core.rules.retiring import retires
from dgpu.core.rules.workers import find_worker, look_again
from dgpu.core.state import ClusterState

_POOLS: Final = tuple(Pool)
# Local names: a lookup of an enum member costs as much as a call.
_POOL: Final = Scope.POOL
_TENANT: Final = Scope.TENANT
_GUARANTEE: Final = Scope.GUARANTEE


class Pass:
    """Each event is applied before the next line is tried."""

    __slots__ = ("at", "events", "full", "looks_at_turns", "settled", "state")

    def __init__(self, state: ClusterState, command: RunPass) -> None:
        self.state = state
        self.at = command.at
        self.full = self.looks_at_turns = command.full
        self.settled = False  # no event was applied since
        self.events: list[Event] = []

    def run(self, limit: int) -> tuple[Event, ...]:
        state, at = self.state, self.at
        self._prepare()
        self._end_broken_dependents()
        placed = 0
        while placed < limit:
            self._settle()
            line = state.queue.beds.first_awake(slot_level(state, at), state.rooms.idle_milli)
            if line is None:
                self._apply(stops_due(state, at))
                if state.workers:
                    self._apply(surplus_workers(state, at))
                    self._apply(tuple(gives_way(state, at)))
                    if self.looks_at_turns:
                        self._apply(tuple(retires(state, at)))
                break
            placed += self._try(line)
        if state.workers:
            self._apply(tuple(take_back(state, at)))
        return tuple(self.events)

    def _sleep(self, line: Line, refusal: Refusal, *, alike: bool) -> None:
        """The line sleeps. If it waits for GPUs and a slot is free, its first task without a reservation gets one.
        `alike`: the changes that lift the refusal of its head wake its other tasks with a reservation, too.
        """
        state = self.state
        reserved: tuple[Event, ...] | None = None
        if refusal.scope is Scope.ROOM:
            reserved = reserve(state, line, self.at, quota_alone=False)
        if reserved:
            self._apply(reserved)
            alike = alike and not self._others(line)  # the task was not tried with its reservation
        above = NO_SLOT if reserved is None else slot_level(state, self.at)
        state.queue.beds.sleep(line, refusal if alike else TASKS_DIFFER, above)

    def _try(self, line: Line) -> bool:
        """Grants a task of the line its demand, or puts the line to sleep. A task with a reservation may start even if
        the head cannot.
        """
        refusal = self._try_task(line, line.head)
        if refusal is None:
            return True
        alike = True
        if line.reserved and _may_spare_others(refusal):
            for task_id in self._others(line):
                other = self._try_task(line, task_id)
                if other is None:
                    return True
                alike = alike and other.scope is refusal.scope
        self._sleep(line, refusal, alike=alike)
        return False

    def _others(self, line: Line) -> list[TaskId]:
        """The tasks of the line with a reservation, without its head."""
        bookings = bookings_in_order(self.state, self.at)
        return [each.task_id for each in bookings if each.line is line and each.task_id != line.head]

    def _try_task(self, line: Line, task_id: TaskId) -> Refusal | None:
        state, at = self.state, self.at
        if line.known.app:
            return self._try_call(line, task_id)
        access = access_of(state, line, task_id, at)
        refusal = admit(state, line, line.claim, access)
        if refusal is not None:
            return refusal
        spots = place(state, line, access, at)
        if not spots:
            return NO_ROOM
        if line.known.is_part:
            # The claim of a part depends on the GPU.
            refusal = admit(state, line, claim_of_spots(spots), access)
            if refusal is not None:
                return PartTooLarge(refused=refusal)
        if state.settings.reservations and task_id not in state.reservations and self._protect(line):
            return self._try_task(line, task_id)
        self._apply(granted(state, task_id, spots, at))
        return None

    def _try_call(self, line: Line, task_id: TaskId) -> Refusal | None:
        """A function call gets a slot of a worker. If it gets none, its app may get another worker."""
        state, at = self.state, self.at
        found = find_worker(state, line, at)
        if isinstance(found, Lease):
            self._apply((granted_slot(state, task_id, found, at),))
            return None
        if isinstance(found, WaitsForWarm):
            look_again(state, line, found, at)
        else:
            self._apply(submit_workers(state, line, at))
        return found

    def _protect(self, line: Line) -> bool:
        """A task is about to start. Lines before it in order that wait for the quota of its pool or tenant reserve that
        quota first. Otherwise smaller tasks could take it forever. True: the task must be tried again.
        """
        for other in overtaken(self.state, line, self.at):
            reserved = reserve(self.state, other, self.at, quota_alone=True)
            if reserved:
                self._apply(reserved)
                self._settle()
                return True
        return False

    def _prepare(self) -> None:
        state, queue = self.state, self.state.queue
        queue.advance(self.at)
        self._apply(typical_due(state, self.at))
        if state.apps:
            state.crews.advance(self.at)
            for failed in failed_calls(state, self.at):
                self._apply((failed,))
            self._apply(surplus_workers(state, self.at))
        if self.full:
            queue.beds.wake_all()

    def _end_broken_dependents(self) -> None:
        """Ends tasks whose dependencies can no longer be met, and their own dependents, up to a limit. A pass is due
        until none is left.
        """
        left = PORTION
        while left > 0 and self.state.dependents.broken:
            event = end_broken(self.state, self.at, left)
            self._apply((event,))
            left -= len(event.task_ids)

    def _settle(self) -> None:
        """After a change: updates reservations, and wakes the lines that the change may have let in."""
        state = self.state
        while not self.settled:
            wake(state, self.at)
            changed = keep_reservations(state, self.at, full=self.full)
            self.settled = True
            self._apply(changed)
        self.full = False

    def _apply(self, events: tuple[Event, ...]) -> None:
        for event in events:
            apply(self.state, event)
            self.settled = False
        self.events += events


def _may_spare_others(refusal: Refusal) -> bool:
    """Whether the refusal may not hold for a task of the line with a reservation."""
    return refusal.may_reserve or refusal.scope is Scope.OTHER


def wake(state: ClusterState, at: int) -> None:
    """Wakes the lines that changes since the last call may have let in. docs/scheduling.md lists which change lifts
    which refusal.
    """
    queue, rooms = state.queue, state.rooms
    queue.reorder()
    settle_pools(state)
    if state.apps:
        _wake_for_workers(state)
    if rooms.improved:
        for room in rooms.improved.values():
            queue.beds.wake_for_room(room, _passable(state, room, at))
        rooms.improved.clear()
    for account in state.accounts.take_freed():
        queue.beds.wake_for_tenant(account)
    state.stirred = False
    queue.beds.wake_for_slot(slot_level(state, at))
    _wake_for_less(state, at)


def _wake_for_workers(state: ClusterState) -> None:
    """Calls may get a slot. The node of a worker may take calls again."""
    crews, workers = state.crews, state.workers
    for room in state.rooms.improved.values() if workers else ():
        for lease_id in room.leases:
            worker = workers.get(state.leases[lease_id].task_id)
            if worker is not None:
                crews.stir(worker.app_id)
    for app_id in crews.stirred:
        state.queue.beds.wake_for_workers(app_id)
    crews.stirred.clear()


def _passable(state: ClusterState, room: Room, at: int) -> Passable:
    here = [each for each in bookings_in_order(state, at) if each.task_id in room.holds] if room.holds else []
    if not here:
        return Passable(0, 0)
    return Passable(min([each.level for each in here]), max([each.window_ms for each in here]))


def _wake_for_less(state: ClusterState, at: int) -> None:
    """A grant, too, can leave more to other tasks: quota that its tenant's tasks in the other pool no longer need, GPUs
    no longer kept for its tenant's guarantee, or a GPU on which a share has a smaller claim.
    """
    beds = state.queue.beds
    for pool in _POOLS:
        closed = [bed for bed in beds.of(_POOL, pool) if not bed.is_open]
        left = free_milli(state, state.queue.pools[pool]) if closed else 0
        for bed in closed:
            if bed.key[2] <= left:
                beds.retry(bed, lets_in=_has_quota(state, bed, at))
    for bed in beds.of(_GUARANTEE):
        first = None if bed.is_open else bed.first()
        beds.retry(bed, lets_in=first is None or guarantees(state, first.account, first.claim) is None)
    if state.reservations:
        _wake_favoured(state)
        _wake_for_gpus(state)
        _wake_for_tenants(state, at)
    beds.wake_others()


def _has_quota(state: ClusterState, bed: Bed, at: int) -> bool:
    """Whether the pool has quota for the first line of the bed, beside reservations. If not, the rest of the bed would
    be refused, too. A task of the line with a reservation may have quota where the first task has none.
    """
    first = bed.first()
    if first is None or first.reserved:
        return True
    return pool_quota(state, first, first.claim, access_of(state, first, first.head, at)) is None


def _wake_favoured(state: ClusterState) -> None:
    """The reservations that a task may pass depend on the unused guarantees of its tenant and of the tenants with
    reservations.
    """
    for account in state.accounts.guaranteed.values():
        if account.short_milli() > 0:
            for line in lines_of(account):
                if line.head and is_favoured(line) and has_quota(state, line.pool, line.claim.milli):
                    state.queue.beds.wake_line(line)


def _wake_for_gpus(state: ClusterState) -> None:
    """A task that reserved quota alone reserves GPUs as soon as it has quota. Any change can give it that: its place
    among reservations counts, and with borrowing the tasks that wait in the other pool.
    """
    for made in state.reservations.values():
        if not made.places:
            state.queue.beds.wake_line(state.queue.line_of(state.tasks[made.task_id]))


def _wake_for_tenants(state: ClusterState, at: int) -> None:
    """What a tenant's reservations keep of its limits depends on all other reservations: those of unknown time may hold
    only so much together.
    """
    beds = state.queue.beds
    limited = {
        booking.line.account.tenant_id: None
        for booking in bookings_in_order(state, at)
        if booking.line.account.limited
    }
    for tenant_id in limited:
        for bed in beds.of(_TENANT, tenant_id):
            if not bed.is_open:
                beds.retry(bed, lets_in=_is_let_in(state, bed, at))


def _is_let_in(state: ClusterState, bed: Bed, at: int) -> bool:
    """Whether no limit of its tenant refuses the first line of the bed. Another task of the line with a reservation may
    be let in where the first task is not.
    """
    first = bed.first()
    if first is None or first.reserved:
        return True
    refusal = admit(state, first, first.claim, access_of(state, first, first.head, at))
    return refusal is None or refusal.scope is not _TENANT


def run_pass(state: ClusterState, command: RunPass) -> tuple[Event, ...]:
    return Pass(state, command).run(command.limit)


def pass_due(state: ClusterState) -> bool:
    """Whether a change since the last pass could let a task start, or give it a reservation."""
    if state.dependents.broken:
        return True
    if not state.queue.count:
        return bool(state.crews.stirred) and state.crews.any_queue
    beds = state.queue.beds
    if beds.any_awake(state.rooms.idle_milli) or state.rooms.improved or state.stirred or state.crews.stirred:
        return True
    return beds.any_above(slot_level(state, state.last_at))
