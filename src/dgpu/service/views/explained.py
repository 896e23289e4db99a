"""What the core explains, as answers."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.core.foresight import sooner
from dgpu.core.foresight.explain import Explanation
from dgpu.core.model.ids import task_name
from dgpu.service.views.tasks import reservation_answer
from dgpu.wire.foresight_answers import Change, NearestNode, Why


def why_answer(found: Explanation) -> Why:
    nearest = found.nearest
    return Why(
        task_id=task_name(found.task_id),
        status=found.status.value,
        summary=found.summary,
        position=found.position,
        ahead=[task_name(task_id) for task_id in found.ahead],
        ahead_total=found.ahead_total,
        blockers=blocker_answers(found),
        nearest=None if nearest is None else NearestNode(node=nearest.node_id, lacks=nearest.lacks),
        reservation=reservation_answer(found.reservation),
    )


def blocker_answers(found: Explanation) -> list[dict[str, int | str]]:
    return [{"code": each.code, "detail": each.detail, **each.numbers} for each in found.blockers]


def change_answers(changes: Iterable[sooner.Change]) -> list[Change]:
    return [Change(change=each.change, detail=each.detail, facts=each.facts) for each in changes]
