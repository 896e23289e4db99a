"""execute(state, command): decide, then apply. A pass repeats that, grant by grant."""

from __future__ import annotations

from typing import Final

from dgpu.core.apply.table import apply
from dgpu.core.commands import Command, RunPass
from dgpu.core.decide.learning import typical_due
from dgpu.core.decide.table import decide
from dgpu.core.decide.time import PORTION
from dgpu.core.decide.waiting import end_broken
from dgpu.core.decision import Decision
from dgpu.core.events import Event, TasksReserved
from dgpu.core.index.lane import UNBOUNDED
from dgpu.core.index.limits import settle_pools
from dgpu.core.index.line import Line
from dgpu.core.index.room import Slot
from dgpu.core.model.settings import Placement
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rejections import Rejection
from dgpu.core.rules.admission import claim_of_grant, free_milli, has_quota, is_kept, within_limits
from dgpu.core.rules.backfill import MAX_LOOKED_AT, grant_kept
from dgpu.core.rules.place import grant
from dgpu.core.rules.reclaim import stops_due
from dgpu.core.rules.reservations import note_admissions, replan, reservations_due, reserve_head
from dgpu.core.state import ClusterState

_IDLE: Final = int(Slot.IDLE)
_PACK: Final = Placement.PACK  # to look a member up costs as much as a call


def execute(state: ClusterState, command: Command) -> Decision:
    """The events are applied when it returns; a refusal changed nothing."""
    if type(command) is RunPass:
        return run_pass(state, command)
    decision = decide(state, command)
    if not isinstance(decision, Rejection):
        for event in decision:
            apply(state, event)
    return decision


def run_pass(state: ClusterState, command: RunPass) -> tuple[Event, ...]:
    """Tries the lines that a change may have let in, in order. A line whose head does not fit sleeps, and with it all
    of the same demand: during a pass, room only shrinks.
    """
    at = command.at
    events = _prepare(state, command)
    plans = state.settings.reservations or state.reservations
    if plans:
        state.bookings.looks_left = MAX_LOOKED_AT
        events += _plan_ahead(state, at)
    elif state.waiting.last_reserved is not None:
        state.waiting.last_reserved, state.waiting.overtaken = None, False  # they were turned off
    placed = 0
    while placed < command.limit:
        granted = next_grant(state, at)
        if not granted:
            break
        for event in granted:
            apply(state, event)
        events += granted
        placed += type(granted[0]) is not TasksReserved
    else:
        return tuple(events)
    if plans:
        if placed and state.reservations:
            note_admissions(state)
        events += _plan_ahead(state, at)
    for event in (stops := stops_due(state, at)):
        apply(state, event)
    return (*events, *stops)


def _prepare(state: ClusterState, command: RunPass) -> list[Event]:
    """Before a pass: who may be tried, and what is due whether anything is placed or not. Each part is asked for here
    only if there is something in it: mostly there is not, and calls for nothing were a tenth of a decision.
    """
    at, waiting, rooms = command.at, state.waiting, state.rooms
    if waiting.delayed_until:
        waiting.advance(at)
    if command.full:
        waiting.wake_all()
        rooms.improved.clear()
    elif rooms.improved:
        waiting.wake_fitting(rooms)
    events: list[Event] = []
    if state.settings.placement is _PACK:
        events += typical_due(state, at)
        for event in events:
            apply(state, event)
    if state.dependents.broken:
        events += end_dependents(state, at)
    _settle(state)
    return events


def _plan_ahead(state: ClusterState, at: int) -> tuple[Event, ...]:
    """Reservations, as far as something may have changed about them."""
    rooms, bookings = state.rooms, state.bookings
    if rooms.moved is not None and bookings.is_long(len(rooms.by_node)):
        if state.reservations:
            bookings.shorten()
        else:
            bookings.forget()
            rooms.moved = None
    if not reservations_due(state, at):
        return ()
    planned = replan(state, at)
    for event in planned:
        apply(state, event)
    return planned


def end_dependents(state: ClusterState, at: int) -> list[Event]:
    """Of tasks that ended otherwise than was waited for, and of those in turn; at most a portion. A pass is due until
    none is left.
    """
    events: list[Event] = []
    left = PORTION
    while left > 0 and (ended := end_broken(state, at, left)):
        for event in ended:
            apply(state, event)
            left -= len(event.task_ids)
        events += ended
    return events


def next_grant(state: ClusterState, at: int) -> tuple[Event, ...]:
    waiting = state.waiting
    idle_milli = state.rooms.counts[_IDLE] * WHOLE_MILLI
    _reopen(state)
    if state.bookings.displaced and (planned := replan(state, at)):
        return planned
    if not idle_milli and state.settings.reservations and waiting.refuse_whole():
        _note_nothing_idle(state)
    while (line := waiting.first_awake(state.rooms)) is not None:
        crowd = line.crowd
        if crowd.milli > idle_milli and not crowd.takes_part_of_a_card:
            # No need to look at nodes, nor at the others if no GPU is idle.
            if not idle_milli:
                waiting.block_whole()
                _note_nothing_idle(state)
                continue
            waiting.block(crowd)
            if state.settings.reservations and (reserved := reserve_head(state, line, at)):
                return reserved
            continue
        if crowd.milli and not has_quota(state, crowd.lane, crowd.milli):
            _close(state, line)
            continue
        if state.tenants and not _tenant_admits(state, line):
            waiting.bar(line)
            continue
        # What reservations give up during a pass is in no lane's rooms yet: then all rooms are asked.
        fitting = crowd.lane.fitting if crowd.blocked and not state.rooms.improved else None
        granted = grant(state, line.head, crowd.demand, at, fitting or None)
        if not granted and state.reservations and (kept := grant_kept(state, crowd, at)) is not None:
            line, granted = kept.line, kept.events
            state.bookings.displaced = state.bookings.displaced or kept.displaces
        if not granted:
            waiting.block(crowd, beside=bool(state.reservations) and crowd.beside)
            if state.settings.reservations and (reserved := reserve_head(state, line, at)):
                return reserved
        elif crowd.takes_part_of_a_card and not _admits_grant(state, line, granted):
            continue
        else:
            return granted
    return ()


def _note_nothing_idle(state: ClusterState) -> None:
    """Those that wait are not tried one by one: whoever may hold a reservation is found out when all are planned."""
    if len(state.reservations) < state.settings.reservations:
        state.bookings.due = True


# what keeps lines from being tried, and lets them again


def _settle(state: ClusterState) -> None:
    """Before a pass: the indexes learn what changed since the last."""
    if state.stirred and len(state.reservations) < state.settings.reservations:
        state.bookings.due = True  # who had no quota for one may have it now
    if state.rooms.refreshed or state.limits_changed:
        settle_pools(state)
    if state.accounts.dropped:
        state.waiting.reorder()
    if state.stirred:
        state.stirred = False
        if state.waiting.barred:
            _unbar(state)


def _reopen(state: ClusterState) -> None:
    """A grant can leave more to others: quota that its tenant's tasks in the other pool no longer need."""
    for lane in state.waiting.pool_lanes:
        if lane.closed or lane.short or lane.turned_away:
            lane.set_left(free_milli(state, lane))
        else:
            lane.left_milli = UNBOUNDED
    if state.accounts.guaranteed and state.waiting.barred:
        _unbar(state)


def _unbar(state: ClusterState) -> None:
    for line in list(state.waiting.barred.values()):
        if _tenant_admits(state, line):
            state.waiting.unbar(line)


def _close(state: ClusterState, line: Line) -> None:
    lane = line.crowd.lane
    lane.left_milli = free_milli(state, lane)
    if lane.left_milli <= 0:
        lane.closed = True
    else:
        lane.run_short(line.crowd)


def _tenant_admits(state: ClusterState, line: Line) -> bool:
    claim = line.crowd.claim
    return within_limits(state, line.account, claim) and not is_kept(state, line.account, claim)


def _admits_grant(state: ClusterState, line: Line, granted: tuple[Event, ...]) -> bool:
    """A share on this very card may be more than the least it could have been."""
    claim = claim_of_grant(granted)
    if not has_quota(state, line.crowd.lane, claim.milli):
        line.crowd.lane.turn_away(line.crowd)
        return False
    if not within_limits(state, line.account, claim) or is_kept(state, line.account, claim):
        state.waiting.bar(line)
        return False
    return True
