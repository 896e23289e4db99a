"""Responses about the past, built from points, rows and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dgpu.core.model.node import Gpu
from dgpu.service.access.principal import Tenants
from dgpu.service.event_owners import node_facts_for
from dgpu.service.history.reader import PastEvent
from dgpu.service.history.usage import Waits
from dgpu.service.rest.past import Range
from dgpu.service.telemetry.reader import Points, Span
from dgpu.service.telemetry.tiers import GPU_COLUMNS
from dgpu.service.views.events import past_node_facts
from dgpu.wire.answers import instant
from dgpu.wire.history_answers import (
    ClusterHistory,
    ClusterPeaks,
    Curve,
    GpuCurves,
    GpuHistory,
    GpuPeaks,
    GpusHistory,
    NodeEvent,
    NodeHealth,
    NodeHistory,
    QueueHistory,
)

_SERIOUS = {"agent_offline": "warning", "gpu_observed": "warning", "gpu_blamed": "warning"}


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """`index` None: it has left."""

    gpu_id: str
    node_id: str
    index: int | None = None
    model: str | None = None
    memory_mb: int | None = None


def card_of(gpu: Gpu) -> Card:
    return Card(gpu_id=gpu.id, node_id=gpu.node_id, index=gpu.index, model=gpu.model, memory_mb=gpu.memory_mb)


def _frame(span: Span) -> dict[str, Any]:
    first, step = span.since // 1_000, span.step_ms // 1_000
    return {
        "since": instant(span.since),
        "until": instant(span.until),
        "step_seconds": step,
        "times": [first + place * step for place in range(span.count)],
    }


def _curves(card: Card, points: Points) -> dict[str, Any]:
    return {
        "gpu": card.gpu_id,
        "node": card.node_id,
        "index": card.index,
        "model": card.model,
        "memory_total_mb": card.memory_mb,
        "max": GpuPeaks(**points.highest),
        **points.mean,
    }


def gpu_history(card: Card, points: Points, span: Span) -> GpuHistory:
    return GpuHistory(**_frame(span), **_curves(card, points))


def gpus_history(cards: Sequence[Card], points: Mapping[str, Points], span: Span) -> GpusHistory:
    return GpusHistory(
        **_frame(span), gpus=[GpuCurves(**_curves(card, points[card.gpu_id])) for card in cards]
    )


def node_history(node: str, cards: Sequence[Card], points: Mapping[str, Points], span: Span) -> NodeHistory:
    all_points = [points[card.gpu_id] for card in cards]
    joined: dict[str, Any] = {
        name: _joined([each.mean[name] for each in all_points], span.count, _joins(name))
        for name in GPU_COLUMNS
    }
    gpus = [GpuCurves(**_curves(card, points[card.gpu_id])) for card in cards]
    return NodeHistory(node=node, **_frame(span), **joined, gpus=gpus)


def _joins(name: str) -> Callable[[list[float]], float]:
    if name == "utilization_percent":
        return lambda values: sum(values) / len(values)
    return max if name == "temperature_c" else sum


def _joined(curves: Sequence[Curve], count: int, join: Callable[[list[float]], float]) -> Curve:
    if not curves:
        return [None] * count
    together: Curve = []
    for values in zip(*curves, strict=True):
        there = [value for value in values if value is not None]
        together.append(round(join(there), 1) if there else None)
    return together


def cluster_history(points: Points, span: Span) -> ClusterHistory:
    curves: dict[str, Any] = {**_frame(span), **points.mean}
    return ClusterHistory(**curves, max=ClusterPeaks(**points.highest))


def queue_history(points: Points, waits: Sequence[Waits], span: Span) -> QueueHistory:
    started = [0] * span.count
    mean: Curve = [None] * span.count
    highest: Curve = [None] * span.count
    for each in waits:
        if 0 <= each.bucket < span.count:
            started[each.bucket] = each.started
            mean[each.bucket] = round(each.mean_ms / 1_000, 3)
            highest[each.bucket] = each.highest_ms / 1_000
    return QueueHistory(
        **_frame(span),
        tasks_waiting=points.mean["tasks_waiting"],
        tasks_waiting_max=points.highest["tasks_waiting"],
        tasks_running=points.mean["tasks_running"],
        tasks_running_max=points.highest["tasks_running"],
        started=started,
        wait_mean_seconds=mean,
        wait_max_seconds=highest,
    )


def node_health(
    node: str, events: Sequence[PastEvent], times: Range, limit: int, tenants: Tenants
) -> NodeHealth:
    return NodeHealth(
        node=node,
        since=instant(times.since),
        until=instant(times.until),
        truncated=len(events) > limit,
        events=[_node_event(event, tenants) for event in events[:limit]],
    )


def _node_event(event: PastEvent, tenants: Tenants) -> NodeEvent:
    kind, facts = past_node_facts(event)
    facts = node_facts_for(tenants, facts)
    severity = facts.pop("severity", _SERIOUS.get(kind, "info"))
    gpu = facts.pop("gpu", None)
    return NodeEvent(
        at=instant(event.at), index=event.index, type=kind, gpu=gpu, severity=severity, facts=facts
    )
