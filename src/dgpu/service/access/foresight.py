"""Predictions for readers of some tenants: effects on own tasks in full, on tasks of others as counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from dgpu.core.foresight.blockers import plural
from dgpu.core.foresight.sooner import Change, awaited_in_words
from dgpu.core.foresight.whatif import Delays, Effect, Starts, Stops, Waits
from dgpu.core.model.ids import task_name
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import is_own, told_to
from dgpu.service.access.principal import Tenants
from dgpu.wire.foresight_answers import WhatifOthers

OnTask = TypeVar("OnTask", Starts, Delays, Stops)


class EffectTold(NamedTuple):
    effect: Effect
    others: WhatifOthers | None = None


def effect_told_to(tenants: Tenants, state: ClusterState, effect: Effect) -> EffectTold:
    """Of a submit by a reader of these tenants."""
    if tenants is None:
        return EffectTold(effect)

    new = {each.task_id for each in effect.starts if each.is_new} | {each.task_id for each in effect.waits}

    def own(found: Iterable[OnTask]) -> tuple[OnTask, ...]:
        return tuple(each for each in found if each.task_id in new or is_own(tenants, state, each.task_id))

    def waiting(found: Waits) -> Waits:
        if found.explanation is None:
            return found
        return replace(found, explanation=told_to(tenants, state, found.explanation, new))

    told = replace(
        effect,
        starts=own(effect.starts),
        delays=own(effect.delays),
        stops=own(effect.stops),
        waits=tuple(waiting(each) for each in effect.waits),
    )
    others = WhatifOthers(
        starts=len(effect.starts) - len(told.starts),
        delays=len(effect.delays) - len(told.delays),
        stops=len(effect.stops) - len(told.stops),
    )
    return EffectTold(told, others)


def changes_told_to(tenants: Tenants, state: ClusterState, changes: Iterable[Change]) -> list[Change]:
    return [_change_told_to(tenants, state, each) for each in changes]


def _change_told_to(tenants: Tenants, state: ClusterState, change: Change) -> Change:
    """Only the change `wait` names tasks."""
    if tenants is None or not change.task_ids:
        return change
    names = [task_name(each) for each in change.task_ids if is_own(tenants, state, each)]
    others = len(change.task_ids) - len(names)
    tasks = [", ".join(names)] if names else []
    tasks += [f"{plural(others, 'task')} of other tenants"] if others else []
    words = awaited_in_words(" and ".join(tasks), str(change.facts["node"]), len(change.task_ids))
    return replace(change, detail=words, facts={**change.facts, "tasks": ", ".join(names)})
