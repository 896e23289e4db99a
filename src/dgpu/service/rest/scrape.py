"""GET /metrics: the whole cluster for Prometheus. Between scrapes, only counting costs time.

A scrape is built in slices, each at a committed point; between them the loop serves other requests. Requests during a
scrape share the next one, so many simultaneous requests cost no more than two. Only the lines of tenants depend on the
reader; they are added to each answer.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dgpu.core.model.ids import GpuId
from dgpu.core.state import ClusterState
from dgpu.file_limit import file_limit, open_files
from dgpu.journal.journal import Room
from dgpu.service.access.principal import Principal, Tenants
from dgpu.service.metrics import cluster
from dgpu.service.metrics.gpu import GpuLines, tell_families
from dgpu.service.metrics.schedulers import tell_schedulers
from dgpu.service.metrics.text import Text
from dgpu.wire.json_body import BadRequest

if TYPE_CHECKING:
    from dgpu.service.rest.backend import Backend

_SLICE = 200  # GPUs at a time: about a millisecond
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Scrape(NamedTuple):
    shared: bytes  # the lines for all readers
    loads: list[cluster.TenantLoad]

    def for_tenants(self, tenants: Tenants) -> bytes:
        text = Text()
        cluster.tell_tenants(text, cluster.main_loads(self.loads, tenants))
        return self.shared + text.encode()


_NOTHING = _Scrape(b"", [])


class Scrapes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._gpu_lines = GpuLines()
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._began_s = 0.0
        self._latest = _NOTHING
        self._started_s = time.time()

    async def answer(self, who: Principal, query: bytes = b"") -> bytes:
        if query:
            raise BadRequest("invalid_query", "/metrics takes no parameters: it always returns everything.")
        asked_s = time.monotonic()
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                if self._began_s <= asked_s:  # else all of it was built after this request
                    self._began_s = time.monotonic()
                    self._latest = await self._make()
                return self._latest.for_tenants(who.tenants)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._latest = _NOTHING

    async def _make(self) -> _Scrape:
        began_s = time.perf_counter()
        backend, meters = self._backend, self._backend.runtime.meters
        meters.forget_removed()
        text, loads, gpu_ids = await backend.runtime.read(self._look)
        telemetry = backend.runtime.telemetry
        slices = []
        for first in range(0, len(gpu_ids), _SLICE):
            part = gpu_ids[first : first + _SLICE]
            look = partial(self._gpu_lines.of, gpu_ids=part, telemetry=telemetry, tasks=meters.gpu_tasks)
            slices.append(await backend.runtime.read(look))
            await asyncio.sleep(0)
        tell_families(text, slices)
        meters.scrapes += 1
        meters.scrape_s += time.perf_counter() - began_s
        return _Scrape(text.encode(), loads)

    def _look(self, state: ClusterState) -> tuple[Text, list[cluster.TenantLoad], list[GpuId]]:
        text = Text()
        backend = self._backend
        meters, counts, at = backend.runtime.meters, backend.views.counts(), backend.runtime.now_ms()
        cluster.tell_tasks(text, state, meters)
        cluster.tell_gpus(text, state)
        cluster.tell_pools(text, state, counts)
        cluster.tell_scheduler(text, state, meters)
        self._tell_service(text)
        self._tell_streams(text)
        self._tell_connections(text)
        self._tell_agents(text, state, at)
        self._tell_process(text)
        self._gpu_lines.forget_removed(state.gpus)
        return text, cluster.all_loads(state, counts, at), list(state.gpus)

    def _tell_service(self, text: Text) -> None:
        backend, runtime = self._backend, self._backend.runtime
        text.by(
            "version",
            "dgpu_build_info",
            "gauge",
            "Always 1; the label is the version.",
            {backend.options.version: 1},
        )
        is_master = int(backend.options.role == "master")
        text.one("scheduler_is_master", "gauge", "1 if this scheduler decides.", is_master)
        about = "Commands that wait to be decided."
        text.one("scheduler_commands_queued", "gauge", about, runtime.queued)
        about = "Groups of events in the journal; this number survives restarts."
        text.one("journal_groups_total", "counter", about, runtime.committed_index)
        about = "1 while the disk has no room and new tasks are refused."
        is_full = runtime.room is not Room.OK and not runtime.trouble
        text.one("journal_storage_full", "gauge", about, int(is_full))
        about = (
            "1 while new tasks are refused because the journal's files are gone or the follower does not run."
        )
        text.one("journal_unavailable", "gauge", about, int(bool(runtime.trouble)))
        about = "Times files of the journal or of stored output were found deleted or replaced, and restored."
        text.one("journal_repairs_total", "counter", about, runtime.repairs.count)
        text.one(
            "scheduler_scrapes_total",
            "counter",
            "Answers to /metrics before this one.",
            runtime.meters.scrapes,
        )
        about = "Time spent on answers to /metrics before this one."
        text.one("scheduler_scrape_seconds_total", "counter", about, runtime.meters.scrape_s)
        tell_schedulers(text, backend.options.standing)
        self._tell_follower(text)
        self._tell_engine(text)

    def _tell_engine(self, text: Text) -> None:
        health = self._backend.options.standing.engine_health()
        if health is None:
            return
        about = "Size of the fullest member of the engine that answers. At the quota, nothing is stored."
        text.one("engine_size_bytes", "gauge", about, health.size_bytes)
        text.one("engine_quota_bytes", "gauge", "Size at which the engine is full.", health.quota_bytes)
        about = "1 while the engine is full and new tasks are refused."
        text.one("engine_storage_full", "gauge", about, int(health.is_full))
        text.one("engine_members", "gauge", "Members of the engine in the configuration.", health.members)
        about = "Members of the engine that answer and know a leader."
        text.one("engine_members_healthy", "gauge", about, health.members_healthy)
        about = "1 while a majority of the engine answers."
        text.one("engine_has_quorum", "gauge", about, int(health.has_quorum))

    def _tell_follower(self, text: Text) -> None:
        follower = self._backend.follower
        lag = error_ms = None
        predicted = restarts = 0
        if follower is not None:
            lag = max(0, self._backend.runtime.committed_index - follower.seen_index)
            restarts = follower.restarts
            predicted, error_ms = follower.forecasts.count, follower.forecasts.median_error_ms
        text.one("history_lag_groups", "gauge", "Groups that the history does not have yet.", lag)
        about = "Restarts of the process that writes history and snapshots."
        text.one("follower_restarts_total", "counter", about, restarts)
        text.one("predicted_starts", "gauge", "Waiting tasks with a predicted start.", predicted)
        about = "Median error of the last 1,000 predicted starts; absent until one was verified."
        error_s = None if error_ms is None else error_ms / 1_000
        text.one("predicted_start_error_seconds", "gauge", about, error_s)

    def _tell_streams(self, text: Text) -> None:
        feed = self._backend.feed
        text.one("sse_clients", "gauge", "Listeners to the stream of events.", feed.listeners)
        about = "Unread bytes of the slowest listener."
        text.one("sse_unread_bytes", "gauge", about, feed.max_unread_bytes)
        about = "Times a listener was too slow, or away too long, and had to read everything again."
        text.one("sse_lagged_total", "counter", about, feed.times_lagged)
        about = "Open streams of events and of logs."
        text.one("http_streams", "gauge", about, self._backend.streams.count)

    def _tell_connections(self, text: Text) -> None:
        doors, turns = self._backend.doors, self._backend.turns
        text.one("http_connections", "gauge", "Open connections for HTTP.", doors.count)
        text.one(
            "http_connections_idle",
            "gauge",
            "Open connections without a request in progress.",
            doors.idle_count,
        )
        text.one("http_connections_max", "gauge", "Maximum of open connections for HTTP.", doors.limits.total)
        about = "Connections refused because their user, their address or all together had too many."
        text.one("http_connections_refused_total", "counter", about, doors.refused)
        about = "Idle connections closed to make room for others."
        text.one("http_connections_shed_total", "counter", about, doors.shed)
        about = "Connections closed because the client did not read its answer."
        text.one("http_connections_unread_total", "counter", about, doors.unread)
        about = "Times no file was left for a new connection."
        text.one("http_accept_pauses_total", "counter", about, doors.accept_pauses)
        text.one(
            "http_unsent_bytes",
            "gauge",
            "Bytes of answers that clients have not read yet.",
            turns.unsent_bytes(),
        )
        text.one("http_large_reads_waiting", "gauge", "Large reads that wait for their turn.", turns.waiting)
        text.one("agent_connections", "gauge", "Open connections of agents.", doors.agents.open)
        text.one("agent_connections_max", "gauge", "Maximum of open connections of agents.", doors.agents.max)
        about = "Connections of other users to the agents' port, closed to make room."
        text.one("agent_connections_closed_total", "counter", about, doors.agents.closed)

    def _tell_agents(self, text: Text, state: ClusterState, at: int) -> None:
        runtime = self._backend.runtime
        about = "Streams and pieces of output that did not come from the node that holds the lease."
        text.one("output_refused_total", "counter", about, self._backend.output.refused)
        copies = self._backend.output.copies
        release = None if copies is None else copies.release
        about = "Ended runs whose output no standby has yet; their nodes keep it. Absent without other schedulers."
        text.one("output_waiting_for_copy", "gauge", about, None if release is None else release.waiting)
        about = "Ended runs whose output is only on this scheduler, because no standby took copies."
        text.one("output_one_copy", "gauge", about, None if release is None else release.one_copy)
        contents = self._backend.files.content_copies
        kept = None if contents is None else contents.release
        about = "Stored content, such as uploads, that a standby has not copied yet. Absent without other schedulers."
        text.one("content_waiting_for_copy", "gauge", about, None if kept is None else kept.waiting)
        about = "Stored content that is only on this scheduler, because no standby could take a copy."
        text.one("content_one_copy", "gauge", about, None if kept is None else kept.one_copy)
        unsent = runtime.unsent
        text.one("agent_streams", "gauge", "Streams of agents that are open.", len(unsent))
        about = "Messages to agents that wait to be written, over all streams."
        text.one("agent_stream_unsent", "gauge", about, sum(unsent))
        about = "The same, of the slowest stream; at 1,000 it is cut."
        text.one("agent_stream_unsent_most", "gauge", about, max(unsent, default=0))
        heard = {node_id: runtime.node_contact(node_id).heard_at for node_id in state.nodes}
        silent_s = {
            str(node_id): max(0, at - heard_at) / 1_000 for node_id, heard_at in heard.items() if heard_at
        }
        text.by(
            "node", "agent_last_heard_seconds", "gauge", "Time since the last message of a node.", silent_s
        )

    def _tell_process(self, text: Text) -> None:
        """With the names that Prometheus' own clients use."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        cpu_s = used.ru_utime + used.ru_stime
        text.one("process_cpu_seconds_total", "counter", "CPU time of the scheduler.", cpu_s)
        text.one("process_resident_memory_bytes", "gauge", "Memory of the scheduler.", resident)
        text.one("process_open_fds", "gauge", "Open files of the scheduler.", open_files())
        text.one("process_max_fds", "gauge", "Maximum of open files.", file_limit())
        text.one("process_start_time_seconds", "gauge", "Start time of the scheduler.", self._started_s)
