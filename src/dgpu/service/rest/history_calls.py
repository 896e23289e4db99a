"""The calls on the past: charts of GPUs, nodes, cluster and queue, usage, timeline, and the health of a node."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from litestar import get
from litestar.params import PathParameter, QueryParameter

from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.rejections import UnknownGpu, UnknownNode
from dgpu.core.state import ClusterState
from dgpu.service.history import usage as reports
from dgpu.service.rest import history_shapes as shapes
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.history_shapes import Card
from dgpu.service.rest.past import MAX_IDS, parse_names, parse_range, parse_span, past_of
from dgpu.service.rest.tasks import Given, Who
from dgpu.service.telemetry.reader import Series
from dgpu.wire.fields import Unacceptable
from dgpu.wire.history_answers import (
    ClusterHistory,
    GpuHistory,
    GpusHistory,
    NodeHealth,
    NodeHistory,
    QueueHistory,
    Timeline,
    Usage,
)
from dgpu.wire.problem import problem_of

_MAX_ID = 128
_MAX_BARS = 5_000
_MAX_EVENTS = 1_000
_BY = ("tenant", "pool", "user")  # or `task`, alone
_Since = Annotated[
    str | None,
    QueryParameter(
        description="How long ago (30d, 6h, 90m), or a time like 2026-07-30T12:00:00Z.", required=False
    ),
]
_Until = Annotated[str | None, QueryParameter(description="The same; now, if absent.", required=False)]
_Step = Annotated[
    str | None,
    QueryParameter(
        required=False,
        description="Seconds or a duration, a multiple of 10 s. If absent, at most 1,000 points. Old data is kept "
        "with a coarser step: step_seconds of the answer counts.",
    ),
]
_GpuId = Annotated[str, PathParameter(description="The GPU's UUID, or its node and index: n1:0.")]
_NodeId = Annotated[str, PathParameter(description="The node's id.")]


@get(
    "/api/v1/history/gpus/{gpu_id:str}",
    summary="Measurements of a GPU",
    description="Means for each step, and maxima in `max`; null if unknown. Also of a GPU that has left.",
)
async def gpu_history(
    rest: Given, gpu_id: _GpuId, since: _Since = None, until: _Until = None, step: _Step = None
) -> GpuHistory:
    _, span = parse_span(rest, since, until, step)
    found = await _find(rest, (gpu_id,))
    past = past_of(rest)
    points = await past.ask(("gpus", found, span), lambda: _read(past.telemetry, found, span))
    return shapes.gpu_history(found[0], points[found[0].gpu_id], span)


@get(
    "/api/v1/history/gpus",
    summary="Measurements of several GPUs",
    description="`ids`: up to 64 of them, separated by commas.",
)
async def gpus_history(
    rest: Given,
    ids: Annotated[str | None, QueryParameter(description="UUIDs, or node:index.", required=False)] = None,
    since: _Since = None,
    until: _Until = None,
    step: _Step = None,
) -> GpusHistory:
    wanted = listing.query_value("ids", parse_names("ids", ids), _some)
    _, span = parse_span(rest, since, until, step)
    found = await _find(rest, wanted)
    past = past_of(rest)
    points = await past.ask(("gpus", found, span), lambda: _read(past.telemetry, found, span))
    return shapes.gpus_history(found, points, span)


@get(
    "/api/v1/history/nodes/{node_id:str}",
    summary="Measurements of a node's GPUs",
    description="Each GPU, and the node: mean utilisation, the highest temperature, sums of all other values.",
)
async def node_history(
    rest: Given, node_id: _NodeId, since: _Since = None, until: _Until = None, step: _Step = None
) -> NodeHistory:
    _, span = parse_span(rest, since, until, step)
    past = past_of(rest)
    seen = await past.ask(("node", node_id), lambda: past.telemetry.gpus_of(node_id, limit=MAX_IDS))
    found = await rest.runtime.read(lambda state: _cards_of_node(state, node_id, seen))
    if found is None:
        raise ProblemError(problem_of(UnknownNode(node_id=NodeId(node_id[:_MAX_ID]))))
    points = await past.ask(("gpus", found, span), lambda: _read(past.telemetry, found, span))
    return shapes.node_history(node_id, found, points, span)


@get(
    "/api/v1/history/cluster",
    summary="Measurements of the cluster",
    description="Mean utilisation, sums, and counts.",
)
async def cluster_history(
    rest: Given, since: _Since = None, until: _Until = None, step: _Step = None
) -> ClusterHistory:
    _, span = parse_span(rest, since, until, step)
    past = past_of(rest)
    points = await past.ask(("cluster", span), lambda: past.telemetry.read_cluster(span))
    return shapes.cluster_history(points, span)


@get(
    "/api/v1/history/queue",
    summary="History of the queue",
    description="Numbers of waiting and running tasks, and the waits of tasks that started in each step.",
)
async def queue_history(
    rest: Given, since: _Since = None, until: _Until = None, step: _Step = None
) -> QueueHistory:
    _, span = parse_span(rest, since, until, step)
    past = past_of(rest)
    points = await past.ask(("cluster", span), lambda: past.telemetry.read_cluster(span))
    waits = await past.ask(
        ("waits", span),
        lambda: reports.waits(past.history, since=span.since, until=span.until, step_ms=span.step_ms),
    )
    return shapes.queue_history(points, waits, span)


@get(
    "/api/v1/history/usage",
    summary="Usage by tenant, pool, user or task",
    description="GPU-hours within the range, including running tasks, and the waits of tasks that started in "
    "it. `user` is the label of that name. `history_behind` above 0: the history lacks this many of the newest groups "
    "of the journal, since `history_behind_seconds`, and numbers are incomplete. The report does not wait for them.",
)
async def usage_history(
    rest: Given,
    who: Who,
    since: _Since = None,
    until: _Until = None,
    by: Annotated[
        str | None,
        QueryParameter(
            description="tenant, pool, user, or several of them: tenant,pool. Or task: a row for each task "
            "that ran, the largest 1,000.",
            required=False,
        ),
    ] = None,
) -> Usage:
    keys = listing.query_value("by", parse_names("by", "tenant" if by is None else by), _known_keys)
    times = parse_range(rest, since, until, default="30d")
    past = past_of(rest)
    upto = rest.runtime.committed_index
    lag_s = 0.0 if rest.follower is None else rest.follower.lag_s
    report = reports.usage_by_task if keys == ("task",) else partial(reports.usage, by=keys)
    return await past.ask(
        ("usage", since, until, keys, who.tenants),
        lambda: report(
            past.history,
            since=times.since,
            until=times.until,
            now=times.now,
            upto_index=upto,
            lag_s=lag_s,
            tenants=who.tenants,
        ),
    )


@get(
    "/api/v1/history/timeline",
    summary="Attempts by node",
    description="Attempts that overlap the range, as bars. Of more than `limit`, the longest are kept and `truncated` "
    "is true.",
)
async def timeline_history(
    rest: Given,
    who: Who,
    since: _Since = None,
    until: _Until = None,
    nodes: Annotated[
        str | None, QueryParameter(description="Only these nodes, separated by commas.", required=False)
    ] = None,
    limit: Annotated[
        str | None, QueryParameter(description="1 to 5000; 2000 if absent.", required=False)
    ] = None,
) -> Timeline:
    most = listing.parse_limit(limit, default=2_000, most=_MAX_BARS)
    wanted = parse_names("nodes", nodes)
    times = parse_range(rest, since, until, default="6h")
    past = past_of(rest)
    return await past.ask(
        ("timeline", since, until, wanted, most, who.tenants),
        lambda: reports.timeline(
            past.history,
            since=times.since,
            until=times.until,
            now=times.now,
            nodes=wanted,
            limit=most,
            tenants=who.tenants,
        ),
    )


@get(
    "/api/v1/history/nodes/{node_id:str}/health",
    summary="Events of a node",
    description="Registrations, losses and drains of the node, and health changes of its GPUs. The newest first. A "
    "principal of some tenants gets no names of other tenants.",
)
async def node_health(
    rest: Given,
    who: Who,
    node_id: _NodeId,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[
        str | None, QueryParameter(description="1 to 1000; 500 if absent.", required=False)
    ] = None,
) -> NodeHealth:
    most = listing.parse_limit(limit, default=500, most=_MAX_EVENTS)
    times = parse_range(rest, since, until, default="30d")
    past = past_of(rest)
    events = await past.ask(
        ("health", node_id, since, until, most),
        lambda: reports.events_of_node(
            past.history, node_id, since=times.since, until=times.until, limit=most + 1
        ),
    )
    if not events:
        known = await rest.runtime.read(lambda state: NodeId(node_id) in state.nodes)
        if not known and not await past.ask(
            ("known", node_id), lambda: reports.knows_node(past.history, node_id)
        ):
            raise ProblemError(problem_of(UnknownNode(node_id=NodeId(node_id[:_MAX_ID]))))
    return shapes.node_health(node_id, events, times, most, who.tenants)


def _known_keys(names: tuple[str, ...]) -> tuple[str, ...]:
    if names != ("task",) and (not names or set(names) - set(_BY)):
        raise Unacceptable("tenant, pool, user, or several of them; or task")
    return names


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise Unacceptable(f"1 to {MAX_IDS} ids, separated by commas")
    return names


def _read(telemetry: Any, cards: tuple[Card, ...], span: Any) -> dict[str, Any]:
    series = {each.gpu_id: each.number for each in telemetry.gpus([card.gpu_id for card in cards])}
    points = telemetry.read_gpus([series.get(card.gpu_id, -1) for card in cards], span)
    return {card.gpu_id: points[series.get(card.gpu_id, -1)] for card in cards}


async def _find(rest: Backend, wanted: tuple[str, ...]) -> tuple[Card, ...]:
    """GPUs of the cluster, and former GPUs that are still in the file."""
    past = past_of(rest)
    live = await rest.runtime.read(lambda state: [_card(state, name) for name in wanted])
    gone = [name for name, card in zip(wanted, live, strict=True) if card is None]
    seen = await past.ask(("seen", *gone), lambda: past.telemetry.gpus(gone)) if gone else []
    by_id = {each.gpu_id: Card(gpu_id=each.gpu_id, node_id=each.node_id) for each in seen}
    found = [card or by_id.get(name) for name, card in zip(wanted, live, strict=True)]
    for name, card in zip(wanted, found, strict=True):
        if card is None:
            raise ProblemError(problem_of(UnknownGpu(gpu_id=GpuId(name[:_MAX_ID]))))
    return tuple(dict.fromkeys(card for card in found if card is not None))


def _card(state: ClusterState, name: str) -> Card | None:
    gpu = state.gpus.get(GpuId(name))
    if gpu is None:
        node, _, index = name.rpartition(":")
        gpu = next((each for each in state.node_gpus(NodeId(node)) if str(each.index) == index), None)
    return None if gpu is None else shapes.card_of(gpu)


def _cards_of_node(state: ClusterState, node_id: str, seen: list[Series]) -> tuple[Card, ...] | None:
    live = {gpu.id: shapes.card_of(gpu) for gpu in state.node_gpus(NodeId(node_id))}
    if NodeId(node_id) not in state.nodes and not seen:
        return None
    gone = [Card(gpu_id=each.gpu_id, node_id=each.node_id) for each in seen if each.gpu_id not in live]
    return (*live.values(), *gone)[:MAX_IDS]


ROUTES: tuple[Any, ...] = (
    gpu_history,
    gpus_history,
    node_history,
    cluster_history,
    queue_history,
    usage_history,
    timeline_history,
    node_health,
)
