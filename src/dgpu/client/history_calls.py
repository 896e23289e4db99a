"""Calls about the past. Times are strings: how long ago (`30d`, `6h`), or RFC 3339."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.client.call import Call
from dgpu.client.request import Request, api_path
from dgpu.wire import history_answers as answers


class HistoryCalls:
    @Call
    def gpu_history(
        self, gpu_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> Request[answers.GpuHistory]:
        """Measurements of a GPU, in columns; `gpu_id` is its UUID or `node:index`."""
        path = api_path("history", "gpus", gpu_id, since=since, until=until, step=step)
        return Request("GET", path, answers.GpuHistory)

    @Call
    def gpus_history(
        self,
        gpu_ids: Sequence[str],
        *,
        since: str | None = None,
        until: str | None = None,
        step: str | None = None,
    ) -> Request[answers.GpusHistory]:
        """Measurements of several GPUs, in columns."""
        path = api_path("history", "gpus", ids=",".join(gpu_ids), since=since, until=until, step=step)
        return Request("GET", path, answers.GpusHistory)

    @Call
    def node_history(
        self, node_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> Request[answers.NodeHistory]:
        """Measurements of a node, in columns."""
        path = api_path("history", "nodes", node_id, since=since, until=until, step=step)
        return Request("GET", path, answers.NodeHistory)

    @Call
    def cluster_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> Request[answers.ClusterHistory]:
        """Measurements of the whole cluster, in columns."""
        path = api_path("history", "cluster", since=since, until=until, step=step)
        return Request("GET", path, answers.ClusterHistory)

    @Call
    def queue_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> Request[answers.QueueHistory]:
        """Numbers of waiting and running tasks, in columns."""
        path = api_path("history", "queue", since=since, until=until, step=step)
        return Request("GET", path, answers.QueueHistory)

    @Call
    def usage(
        self, *, since: str | None = None, until: str | None = None, by: Sequence[str] = ("tenant",)
    ) -> Request[answers.Usage]:
        """GPU-hours, waiting times and utilisation by tenant, pool or user; or by task: a row for each that ran."""
        path = api_path("history", "usage", since=since, until=until, by=",".join(by))
        return Request("GET", path, answers.Usage)

    @Call
    def timeline(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        nodes: Sequence[str] = (),
        limit: int | None = None,
    ) -> Request[answers.Timeline]:
        """Tasks by GPU and time."""
        names = ",".join(nodes) or None
        path = api_path("history", "timeline", since=since, until=until, nodes=names, limit=limit)
        return Request("GET", path, answers.Timeline)

    @Call
    def node_health(
        self, node_id: str, *, since: str | None = None, until: str | None = None, limit: int | None = None
    ) -> Request[answers.NodeHealth]:
        """Events of a node and its GPUs, the newest first."""
        path = api_path("history", "nodes", node_id, "health", since=since, until=until, limit=limit)
        return Request("GET", path, answers.NodeHealth)
