"""The calls about what was. Times are texts: how long ago (`30d`, `6h`), or RFC 3339."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dgpu.client.calls import Call
from dgpu.wire import history_answers as answers

_ROOT = "/api/v1/history"


def gpu(gpu_id: str, since: str | None, until: str | None, step: str | None) -> Call[answers.GpuHistory]:
    path = _path("gpus", gpu_id, since=since, until=until, step=step)
    return Call(method="GET", path=path, answer=answers.GpuHistory)


def gpus(
    gpu_ids: Sequence[str], since: str | None, until: str | None, step: str | None
) -> Call[answers.GpusHistory]:
    path = _path("gpus", ids=",".join(gpu_ids), since=since, until=until, step=step)
    return Call(method="GET", path=path, answer=answers.GpusHistory)


def node(node_id: str, since: str | None, until: str | None, step: str | None) -> Call[answers.NodeHistory]:
    path = _path("nodes", node_id, since=since, until=until, step=step)
    return Call(method="GET", path=path, answer=answers.NodeHistory)


def cluster(since: str | None, until: str | None, step: str | None) -> Call[answers.ClusterHistory]:
    path = _path("cluster", since=since, until=until, step=step)
    return Call(method="GET", path=path, answer=answers.ClusterHistory)


def queue(since: str | None, until: str | None, step: str | None) -> Call[answers.QueueHistory]:
    path = _path("queue", since=since, until=until, step=step)
    return Call(method="GET", path=path, answer=answers.QueueHistory)


def usage(since: str | None, until: str | None, by: Sequence[str]) -> Call[answers.Usage]:
    path = _path("usage", since=since, until=until, by=",".join(by))
    return Call(method="GET", path=path, answer=answers.Usage)


def timeline(
    since: str | None, until: str | None, nodes: Sequence[str], limit: int | None
) -> Call[answers.Timeline]:
    path = _path("timeline", since=since, until=until, nodes=",".join(nodes) or None, limit=limit)
    return Call(method="GET", path=path, answer=answers.Timeline)


def node_health(
    node_id: str, since: str | None, until: str | None, limit: int | None
) -> Call[answers.NodeHealth]:
    path = _path("nodes", node_id, "health", since=since, until=until, limit=limit)
    return Call(method="GET", path=path, answer=answers.NodeHealth)


def _path(*parts: str, **query: Any) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    path = "/".join((_ROOT, *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(given)}" if given else path
