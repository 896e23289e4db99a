"""The part of both clients that asks about what was."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TypeVar

from dgpu.client import history_calls
from dgpu.client.calls import Call
from dgpu.wire import history_answers

T = TypeVar("T")


class PastCalls(abc.ABC):
    @abc.abstractmethod
    def _do(self, call: Call[T]) -> T: ...

    # what was; times are how long ago (`30d`, `6h`) or RFC 3339

    def gpu_history(
        self, gpu_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.GpuHistory:
        """What a card measured, in columns; `gpu_id` is its UUID or `node:index`."""
        return self._do(history_calls.gpu(gpu_id, since, until, step))

    def gpus_history(
        self,
        gpu_ids: Sequence[str],
        *,
        since: str | None = None,
        until: str | None = None,
        step: str | None = None,
    ) -> history_answers.GpusHistory:
        return self._do(history_calls.gpus(gpu_ids, since, until, step))

    def node_history(
        self, node_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.NodeHistory:
        return self._do(history_calls.node(node_id, since, until, step))

    def cluster_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.ClusterHistory:
        return self._do(history_calls.cluster(since, until, step))

    def queue_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.QueueHistory:
        return self._do(history_calls.queue(since, until, step))

    def usage(
        self, *, since: str | None = None, until: str | None = None, by: Sequence[str] = ("tenant",)
    ) -> history_answers.Usage:
        """GPU-hours and waiting times by tenant, pool or user."""
        return self._do(history_calls.usage(since, until, by))

    def timeline(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        nodes: Sequence[str] = (),
        limit: int | None = None,
    ) -> history_answers.Timeline:
        return self._do(history_calls.timeline(since, until, nodes, limit))

    def node_health(
        self, node_id: str, *, since: str | None = None, until: str | None = None, limit: int | None = None
    ) -> history_answers.NodeHealth:
        """What happened to a node and its cards, the newest first."""
        return self._do(history_calls.node_health(node_id, since, until, limit))


class AsyncPastCalls(abc.ABC):
    @abc.abstractmethod
    async def _do(self, call: Call[T]) -> T: ...

    # what was; times are how long ago (`30d`, `6h`) or RFC 3339

    async def gpu_history(
        self, gpu_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.GpuHistory:
        """What a card measured, in columns; `gpu_id` is its UUID or `node:index`."""
        return await self._do(history_calls.gpu(gpu_id, since, until, step))

    async def gpus_history(
        self,
        gpu_ids: Sequence[str],
        *,
        since: str | None = None,
        until: str | None = None,
        step: str | None = None,
    ) -> history_answers.GpusHistory:
        return await self._do(history_calls.gpus(gpu_ids, since, until, step))

    async def node_history(
        self, node_id: str, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.NodeHistory:
        return await self._do(history_calls.node(node_id, since, until, step))

    async def cluster_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.ClusterHistory:
        return await self._do(history_calls.cluster(since, until, step))

    async def queue_history(
        self, *, since: str | None = None, until: str | None = None, step: str | None = None
    ) -> history_answers.QueueHistory:
        return await self._do(history_calls.queue(since, until, step))

    async def usage(
        self, *, since: str | None = None, until: str | None = None, by: Sequence[str] = ("tenant",)
    ) -> history_answers.Usage:
        """GPU-hours and waiting times by tenant, pool or user."""
        return await self._do(history_calls.usage(since, until, by))

    async def timeline(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        nodes: Sequence[str] = (),
        limit: int | None = None,
    ) -> history_answers.Timeline:
        return await self._do(history_calls.timeline(since, until, nodes, limit))

    async def node_health(
        self, node_id: str, *, since: str | None = None, until: str | None = None, limit: int | None = None
    ) -> history_answers.NodeHealth:
        """What happened to a node and its cards, the newest first."""
        return await self._do(history_calls.node_health(node_id, since, until, limit))
