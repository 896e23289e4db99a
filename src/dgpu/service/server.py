"""The whole service in one loop: journal, machine, gRPC for agents, HTTP for clients, and the follower process beside
it.

Listening starts first, so that a client that connects during the recovery waits instead of failing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from dgpu.core.events import WallClockRead
from dgpu.core.model.ids import LeaseId
from dgpu.core.state import ClusterState
from dgpu.core_form import FORM
from dgpu.file_limit import file_limit
from dgpu.journal.archive import Retention
from dgpu.journal.file import FileJournal
from dgpu.journal.journal import Recovery
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.agent_port import agent_port, open_machines
from dgpu.service.alerts.watch import AlertWatch
from dgpu.service.audit.trail import AuditTrail, audit_trail
from dgpu.service.follower.link import FollowerLink
from dgpu.service.follower.words import FollowerSettings
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.open_files import AgentConnections, budget_of
from dgpu.service.options import ServiceOptions, check_options
from dgpu.service.recovery.rescue import write_own_snapshot
from dgpu.service.recovery.start import Start
from dgpu.service.secrets.details import open_detail
from dgpu.service.secrets.vault import Vault
from dgpu.service.task_files import FileStreams
from dgpu.service.task_output.intake_words import Holder, HolderFound
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.streams import OutputStreams
from dgpu.service.task_output.upkeep import look_after_files
from dgpu.service.telemetry.recorder import record_for_ever
from dgpu.service.views.views import Views
from dgpu.wire.address import Address
from dgpu.wire.answers import instant
from dgpu.wire.ranks import run_number
from dgpu.wire.wall_time import SHOWN

if TYPE_CHECKING:
    from dgpu.service.history.reader import History

_BACKLOG = 1_024
_HISTORY_LOOK_S = 1.0
# The journal thread gets its turn soon after an fsync. Shorter than a turn of a busy loop: if a turn ends earlier, the
# loop takes the interpreter back before the thread is awake, and the thread waits anew.
_SWITCH_INTERVAL_S = 0.0001

_log = structlog.get_logger("dgpu.server")


class ServedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the service, with the ports that were chosen."""

    http: Address
    grpc: Address
    epoch: int


async def serve(
    options: ServiceOptions,
    ready_callback: Callable[[ServedAt], None] | None = None,
    *,
    on_committed: Callable[[CommittedGroup], None] | None = None,
    stop: asyncio.Event | None = None,
    show_token: Callable[[str], None] | None = None,  # gets the first token of a new cluster, once
) -> None:
    """Serves until SIGTERM, SIGINT or `stop`. Raises OptionsRefused, JournalError or OSError if it cannot start."""
    check_options(options)
    machines = open_machines(options)
    _stop_on_signals(stop := stop or asyncio.Event())
    http_socket = _listen(options.http)
    files = FileStreams()
    connections = AgentConnections(max=budget_of(file_limit()).agents)
    async with (
        _https(options) as tls,
        _state(options, on_committed) as (runtime, views, follower, vault),
        audit_trail(runtime) as trail,
        _output(options, runtime) as output,
        agent_port(options, runtime, output, files, connections, machines, trail) as grpc_port,
        _alerts(options, runtime) as alerts,
        _http(
            options,
            runtime,
            views,
            output,
            files,
            follower,
            alerts,
            http_socket,
            connections,
            tls,
            show_token,
            vault,
            trail,
        ),
    ):
        at = ServedAt(
            http=Address(host=options.http.host, port=http_socket.getsockname()[1]),
            grpc=Address(host=options.grpc.host, port=grpc_port),
            epoch=runtime.epoch,
        )
        follower.start(runtime.committed_index)  # last: its start must not delay the first answer
        _log.info("role_changed", role="master", epoch=at.epoch, cause="started")
        _log.info("scheduler_ready", http=str(at.http), grpc=str(at.grpc), epoch=at.epoch, core=FORM)
        if ready_callback is not None:
            ready_callback(at)
        await stop.wait()
        _log.info("scheduler_stopping")


@contextlib.asynccontextmanager
async def _state(
    options: ServiceOptions, on_committed: Callable[[CommittedGroup], None] | None
) -> AsyncIterator[tuple[Runtime, Views, FollowerLink, Vault]]:
    """Recovered and running. At the end everything is committed, and the follower writes the last snapshot."""
    began_s = time.monotonic()
    gc.disable()
    start = Start(options.data_dir, accept_lost_tail=options.accept_lost_tail)
    journal = FileJournal.open(options.data_dir, segment_bytes=options.segment_bytes)
    mark = AcknowledgedMark(options.data_dir)
    try:
        recovery = start.recover(journal)
        _tell_log(recovery)
        state = recovery.replayed()
        start.check(state, recovery.index)
        views = Views(state, recovery.index)
        _settle_collector()
        vault = Vault.load(options.data_dir)
        clock = Clock(state.last_at, state.wall)
        SHOWN.follow(state.wall)
        scheduler = Scheduler(
            state,
            last_index=recovery.index,
            rules=options.rules,
            started_at=clock.now_ms(),
            full_pass_ms=options.schedule_interval_ms,
            opener=functools.partial(open_detail, vault),
        )
        runtime = Runtime(scheduler, journal, clock, mark)
        follower = FollowerLink(
            options.data_dir,
            _follower_settings(options),
            rescue=lambda: write_own_snapshot(runtime, options.data_dir),
        )
        runtime.on_snapshot_due = follower.snapshot_soon
        runtime.subscribe(lambda group: _follow_wall_clock(group, state, clock))
        runtime.subscribe(views.on_group)
        runtime.subscribe(lambda group: follower.notify(group.index))
        if on_committed is not None:
            runtime.subscribe(on_committed)
        runtime.subscribe(lambda group: start.on_group(group, state))
        runtime.on_contradicted = start.hear
        await runtime.start(start.begin(options.settings))
        milliseconds = round((time.monotonic() - began_s) * 1_000)
        _log.info("state_recovered", index=recovery.index, tasks=len(state.tasks), ms=milliseconds)
        async with _followed(runtime, follower, fresh_ms=options.rules.heartbeat_timeout_ms):
            yield runtime, views, follower, vault
    finally:
        journal.close()
        mark.close()


@contextlib.asynccontextmanager
async def _followed(runtime: Runtime, follower: FollowerLink, *, fresh_ms: int) -> AsyncIterator[None]:
    """The follower gets samples and reports its progress. At the end the runtime stops first: it commits the rest."""
    looking = asyncio.create_task(_watch_history(follower, runtime))
    recording = asyncio.create_task(record_for_ever(runtime, follower, fresh_ms=fresh_ms))
    try:
        yield
    finally:
        looking.cancel()
        recording.cancel()
        await runtime.stop()
        await follower.stop(final_snapshot=True)


def _tell_log(recovery: Recovery) -> None:
    for note in recovery.notes:
        _log.warning("recovery_note", detail=note)
    cut = recovery.cut
    if cut is not None:
        _log.warning(
            "journal_tail_cut", index=cut.index, file=cut.file, offset=cut.offset, kept_at=cut.kept_at
        )


@contextlib.asynccontextmanager
async def _output(options: ServiceOptions, runtime: Runtime) -> AsyncIterator[OutputStreams]:
    store = LogStore(
        options.data_dir / "logs",
        retention_bytes=options.log_retention_bytes,
        retention_ms=options.log_retention_ms,
    )
    loop = asyncio.get_running_loop()
    store.report = lambda note: loop.call_soon_threadsafe(runtime.report_repair, note)
    output = OutputStreams(
        store, runtime, head_bytes=options.log_head_bytes, tail_bytes=options.log_tail_bytes
    )
    looking = loop.create_task(look_after_files(output), name="output-files")
    try:
        yield output
    finally:
        looking.cancel()
        await output.close()


@contextlib.asynccontextmanager
async def _alerts(options: ServiceOptions, runtime: Runtime) -> AsyncIterator[AlertWatch | None]:
    if options.alerts is None:
        yield None
        return
    watch = AlertWatch(options.alerts, runtime, options.data_dir)
    await watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


@contextlib.asynccontextmanager
async def _http(
    options: ServiceOptions,
    runtime: Runtime,
    views: Views,
    output: OutputStreams,
    files: FileStreams,
    follower: FollowerLink,
    alerts: AlertWatch | None,
    listening: socket.socket,
    connections: AgentConnections,
    tls: ssl.SSLContext | None,
    show_token: Callable[[str], None] | None,
    vault: Vault,
    trail: AuditTrail,
) -> AsyncIterator[None]:
    from dgpu import __version__
    from dgpu.service.door import opened_access
    from dgpu.service.history.reader import History
    from dgpu.service.rest.app import create_app
    from dgpu.service.rest.backend import RestOptions
    from dgpu.service.rest.doors import Doors
    from dgpu.service.rest.http_server import HttpServer
    from dgpu.service.rest.turns import Turns

    doors, turns = Doors(budget_of(file_limit()).http, connections), Turns()
    history = History(
        options.data_dir / "history.sqlite", _damage_told_to(follower), lambda: follower.seen_index > 0
    )
    output.look_up_with(_past_holders(history, follower, runtime.committed_index))
    async with opened_access(options, runtime, show_token) as access:
        rest = RestOptions(
            version=__version__,
            journal_dir=options.data_dir,
            isolation=options.rules.isolation,
            is_open=options.auth_mode == "none",
        )
        app = create_app(
            runtime, views, history, output, access, rest, follower, alerts, files, doors, turns, vault, trail
        )
        server = HttpServer(app, doors, turns, tls)
        await server.start(listening)
        try:
            yield
        finally:
            await server.stop()
            history.close()


@contextlib.asynccontextmanager
async def _https(options: ServiceOptions) -> AsyncIterator[ssl.SSLContext | None]:
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


async def _watch_history(follower: FollowerLink, runtime: Runtime) -> None:
    """Tasks that are in the history may leave the memory."""
    while True:
        await asyncio.sleep(_HISTORY_LOOK_S)
        runtime.history_advanced(follower.seen_at)
        runtime.hindrance = follower.trouble


def _follow_wall_clock(group: CommittedGroup, state: ClusterState, clock: Clock) -> None:
    for event in group.events:
        if isinstance(event, WallClockRead):
            SHOWN.follow(state.wall)
            shown, offset_ms = instant(event.at), event.span.wall_offset_ms
            if (jump := clock.recent_jump()) is None:
                _log.info("wall_clock_read", shown=shown, wall_offset_ms=offset_ms)
            else:
                seconds = jump.by_ms / 1000
                _log.warning("wall_clock_set", by_seconds=seconds, shown=shown, wall_offset_ms=offset_ms)


def _follower_settings(options: ServiceOptions) -> FollowerSettings:
    return FollowerSettings(
        snapshot_interval_ms=options.snapshot_interval_ms,
        retention=Retention(
            most_bytes=options.journal_retention_bytes, most_age_ms=options.journal_retention_ms
        ),
        telemetry_bytes=options.telemetry_retention_bytes,
        telemetry_age_ms=options.telemetry_retention_ms,
        audit=options.audit,
    )


def _listen(address: Address) -> socket.socket:
    host = address.host or "::"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((host, address.port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {address} for HTTP: {error.strerror}") from error
    return listening


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # not the main thread: a test stops it by the event
            loop.add_signal_handler(number, stop.set)


def _settle_collector() -> None:
    """The recovered state stays, so the collector need not walk it. Full collections run when no request waits."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 10_000)
    gc.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
