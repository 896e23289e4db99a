"""Parts around the state that people and agents meet: output of tasks, alerts, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import structlog

from dgpu.core.model.ids import LeaseId
from dgpu.file_limit import file_limit
from dgpu.service.alerts.watch import AlertWatch
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.content.store import ContentStore
from dgpu.service.content.uses import expiring_content
from dgpu.service.copies.wholeness import OUTPUT_FOLDER, Wholeness
from dgpu.service.follower.link import FollowerLink
from dgpu.service.history.copying import OwnHistory
from dgpu.service.history.past_pages import Past
from dgpu.service.leadership.standing import Lone, Standing
from dgpu.service.loop.runtime import Runtime
from dgpu.service.node_streams import NodeStreams
from dgpu.service.notices.reach import NoticeTargets
from dgpu.service.notices.watch import NoticeWatch
from dgpu.service.open_files import AgentConnections, budget_of
from dgpu.service.options import ServiceOptions
from dgpu.service.parts import Parts
from dgpu.service.results.file import RESULTS_NAME, ResultReader
from dgpu.service.task_output.intake_words import Holder, HolderFound
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.streams import OutputStreams
from dgpu.service.task_output.upkeep import look_after_files
from dgpu.wire.ranks import run_number

_log = structlog.get_logger("dgpu.server")

if TYPE_CHECKING:
    from dgpu.service.history.reader import History
    from dgpu.service.rest.access import Access
    from dgpu.service.rest.backend import Backend, RestOptions
    from dgpu.service.rest.http_server import HttpServer


@contextlib.asynccontextmanager
async def stored_output(options: ServiceOptions, runtime: Runtime) -> AsyncIterator[OutputStreams]:
    folder = options.data_dir / OUTPUT_FOLDER
    store = LogStore(
        folder,
        retention_bytes=options.log_retention_bytes,
        retention_ms=options.log_retention_ms,
    )
    loop = asyncio.get_running_loop()
    store.report = lambda note: loop.call_soon_threadsafe(runtime.repairs.note_output, note)
    output = OutputStreams(
        store,
        runtime,
        head_bytes=options.log_head_bytes,
        tail_bytes=options.log_tail_bytes,
        wholeness=None if options.shared is None else Wholeness(folder),
    )
    looking = loop.create_task(look_after_files(output), name="output-files")
    try:
        yield output
    finally:
        looking.cancel()
        await output.close()


def stored_content(options: ServiceOptions) -> ContentStore | None:
    """None: its directory cannot be made. A full disk must not keep the scheduler from starting."""
    try:
        return ContentStore(options.data_dir / "content", options.uploads)
    except OSError as error:
        _log.error("uploads_unavailable", error=str(error))
        return None


@contextlib.asynccontextmanager
async def watched_alerts(
    options: ServiceOptions, runtime: Runtime, standing: Standing | None = None
) -> AsyncIterator[AlertWatch | None]:
    if options.alerts is None:
        yield None
        return
    stored = await runtime.read(lambda state: dict(state.alert_records))
    watch = AlertWatch(options.alerts, runtime, options.data_dir, stored, standing)
    await watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


@contextlib.asynccontextmanager
async def sent_notices(options: ServiceOptions, parts: Parts) -> AsyncIterator[None]:
    stored = await parts.runtime.read(lambda state: dict(state.alert_records))
    targets = NoticeTargets(options.notices, parts.vault)
    watch = NoticeWatch(parts.runtime, parts.state, targets, options.notices.sending, stored)
    await watch.start()
    try:
        yield
    finally:
        await watch.stop()


@contextlib.asynccontextmanager
async def mirrored(options: ServiceOptions, runtime: Runtime) -> AsyncIterator[None]:
    """A picture of the queue in Redis, while this scheduler leads."""
    if options.redis is None:
        yield
        return
    from dgpu.service.redis.mirror import mirrored_queue
    from dgpu.service.redis.resp import parse_url

    async with mirrored_queue(runtime, parse_url(options.redis.url), options.redis.prefix):
        yield


@contextlib.asynccontextmanager
async def http_port(
    options: ServiceOptions,
    parts: Parts,
    output: OutputStreams,
    streams: NodeStreams,
    listening: socket.socket,
    connections: AgentConnections,
    tls: ssl.SSLContext | None,
    trail: AuditTrail,
    standing: Standing | None = None,
) -> AsyncIterator[tuple[Backend, Access]]:
    from dgpu.service.door import opened_access
    from dgpu.service.proxy.port import proxy_port
    from dgpu.service.rest.app import app_of
    from dgpu.service.rest.backend import Backend
    from dgpu.service.rest.doors import Doors
    from dgpu.service.rest.http_server import HttpServer
    from dgpu.service.rest.turns import Turns

    runtime, follower = parts.runtime, parts.follower
    doors, turns = Doors(budget_of(file_limit()).http, connections), Turns()
    history = _history(options, follower)
    output.look_up_with(_past_holders(history, follower, runtime.committed_index))
    async with opened_access(options, runtime) as access, expiring_content(streams.files.content, runtime):
        backend = Backend(
            runtime,
            parts.views,
            history,
            output,
            _rest_options(options, standing),
            follower,
            streams.files,
            doors,
            turns,
            access.tokens,
            parts.vault,
            trail,
            streams.channels,
        )
        backend.results.read_from(options.data_dir)
        backend.notice_targets = NoticeTargets(options.notices, parts.vault)
        server = HttpServer(app_of(backend, access), doors, turns, tls)
        await server.start(listening)
        try:
            async with proxy_port(options.proxy, backend, access, tls):
                yield backend, access
        finally:
            await _stop(server, backend)
            history.close()


@contextlib.asynccontextmanager
async def own_history(options: ServiceOptions, parts: Parts) -> AsyncIterator[OwnHistory]:
    """For exchanges with other schedulers."""
    past = Past(_history(options, parts.follower), ResultReader(options.data_dir / RESULTS_NAME))
    try:
        yield OwnHistory(past, parts.follower, lambda: parts.state.cluster_id)
    finally:
        past.close()


async def _stop(server: HttpServer, backend: Backend) -> None:
    backend.results.recent.close()
    await server.stop()
    backend.stop()


def _history(options: ServiceOptions, follower: FollowerLink) -> History:
    from dgpu.service.history.reader import History

    path = options.data_dir / "history.sqlite"
    return History(path, _damage_told_to(follower), lambda: follower.seen_index > 0)


def _rest_options(options: ServiceOptions, standing: Standing | None) -> RestOptions:
    from dgpu import __version__
    from dgpu.service.rest.backend import RestOptions

    return RestOptions(
        version=__version__,
        journal_dir=options.data_dir,
        isolation=options.rules.isolation,
        is_open=options.auth_mode == "none",
        max_grace_ms=options.max_grace_ms,
        worker_setup=options.worker_setup,
        standing=Lone() if standing is None else standing,
    )


@contextlib.asynccontextmanager
async def https_context(options: ServiceOptions) -> AsyncIterator[ssl.SSLContext | None]:
    if options.http_tls is None:
        yield None
        return
    from dgpu.service.machines.https import https

    async with https(options.http_tls, options.data_dir) as tls:
        yield tls


def _past_holders(
    history: History, follower: FollowerLink, recovered_index: int
) -> Callable[[LeaseId], HolderFound]:
    def past_holder(lease_id: LeaseId) -> HolderFound:
        # The history has all leases from before this start once it has read the journal up to the recovered index.
        is_sure = follower.seen_index >= recovered_index
        found = history.rank_of(lease_id)
        holder = None
        if found is not None:
            task_id, attempt, rank, node_id = found
            holder = Holder(node_id=node_id, task_id=task_id, attempt=run_number(attempt, rank))
        return HolderFound(lease_id=lease_id, holder=holder, is_sure=is_sure)

    return past_holder


def _damage_told_to(follower: FollowerLink) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next start handles it
            loop.call_soon_threadsafe(follower.remake_history)

    return tell
