"""A scheduler among several: follows, leads when it wins, and follows again after it stepped down.

Each life has one warm set of parts. It recovers from the local segments, catches up from the engine and serves reads.
When it wins the leader key, the same parts begin an epoch, and the agents' port opens. A life that stepped down is
discarded whole: its memory may hold a group that was never committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dgpu.file_limit import file_limit
from dgpu.journal.engine import Candidate, Engine, EngineUnavailable
from dgpu.journal.journal import Group
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.agent_port import agent_port
from dgpu.service.audit.trail import AuditTrail, audit_trail
from dgpu.service.history.copying import OwnHistory
from dgpu.service.leadership.candidacy import Candidacy
from dgpu.service.leadership.digests import Digests
from dgpu.service.leadership.engine_watch import EngineWatch
from dgpu.service.leadership.joining import open_copy, refuse_other_settings
from dgpu.service.leadership.peers import Peers
from dgpu.service.leadership.shared import SharedJournal
from dgpu.service.leadership.shared_keys import SharedKeys
from dgpu.service.leadership.standing import Among
from dgpu.service.leadership.taking_copies import Connect, taking_copies
from dgpu.service.leadership.trimming import Trimming
from dgpu.service.leadership.waiting_room import waiting_room
from dgpu.service.loop.failures import NotMaster
from dgpu.service.node_streams import node_streams
from dgpu.service.open_files import AgentConnections, budget_of
from dgpu.service.options import OptionsRefused, ServedAt, ServiceOptions, SharedOptions
from dgpu.service.outlets import (
    http_port,
    https_context,
    mirrored,
    own_history,
    sent_notices,
    stored_content,
    stored_output,
    watched_alerts,
)
from dgpu.service.parts import OnCommitted, Parts, followed, open_parts, recorded, tell_recovery
from dgpu.service.recovery.start import Start
from dgpu.service.task_output.streams import OutputStreams
from dgpu.wire.address import Address

if TYPE_CHECKING:
    from dgpu.journal.etcd.roll import Roll
    from dgpu.service.machines.machines import Machines
    from dgpu.service.rest.access import Access
    from dgpu.service.rest.backend import Backend

_RETRY_S = 1.0

_log = structlog.get_logger("dgpu.server")


async def serve_shared(
    options: ServiceOptions,
    listening: socket.socket,
    machines: Machines | None,
    stop: asyncio.Event,
    ready: Callable[[ServedAt], None],
    *,
    on_committed: OnCommitted | None = None,
    show_token: Callable[[str], None] | None = None,
    engine: Engine | None = None,
) -> None:
    """Returns after `stop`. Raises an error that an operator must handle."""
    shared = options.shared
    if shared is None:
        raise ValueError("the options name no other scheduler")
    opened = engine if engine is not None else _open_engine(shared)
    try:
        peers = Peers(shared, _open_roll(shared))
        rules = msgspec.structs.replace(options.rules, other_rest_urls=peers.other_urls)
        options = msgspec.structs.replace(options, rules=rules)
        async with (
            https_context(options) as tls,
            EngineWatch(opened).running() as watch,
            peers.watched(),
        ):
            while not stop.is_set():
                standing = Among(
                    http=shared.http,
                    read_stale_max_ms=shared.read_stale_max_ms,
                    engine_health=lambda: watch.health,
                    peers=peers,
                )
                life = _Life(
                    options, shared, opened, standing, peers, machines, tls, ready, on_committed, show_token
                )
                await life.run(listening, stop)
    finally:
        await asyncio.to_thread(opened.close)


def _open_engine(shared: SharedOptions) -> Engine:
    from dgpu.journal.etcd.engine import EtcdEngine

    if shared.etcd is None:
        raise OptionsRefused("ha.endpoints: no endpoint of etcd is given.")
    return EtcdEngine(shared.etcd)


def _open_roll(shared: SharedOptions) -> Roll | None:
    from dgpu.journal.etcd.roll import Roll

    return None if shared.etcd is None else Roll(shared.etcd)


class _Life:
    def __init__(
        self,
        options: ServiceOptions,
        shared: SharedOptions,
        engine: Engine,
        standing: Among,
        peers: Peers,
        machines: Machines | None,
        tls: ssl.SSLContext | None,
        ready: Callable[[ServedAt], None],
        on_committed: OnCommitted | None,
        show_token: Callable[[str], None] | None,
    ) -> None:
        self._options = options
        self._shared = shared
        self._engine = engine
        self._peers = peers
        self._machines = machines
        self._tls = tls
        self._ready = ready
        self._on_committed = on_committed
        self._show_token = show_token
        self._streams = node_streams(stored_content(options), is_shared=True)
        self._connections = AgentConnections(max=budget_of(file_limit()).agents)
        self._standing = standing

    async def run(self, listening: socket.socket, stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        # The server closes it at its end; meanwhile connections wait in the backlog of the other one.
        own_socket = listening.dup()
        journal: SharedJournal | None = None
        try:
            journal = await self._opened(listening, stopping)
            if journal is None:
                return
            async with (
                self._state(journal) as (parts, candidacy),
                audit_trail(parts.runtime) as trail,
                stored_output(self._options, parts.runtime) as output,
                http_port(
                    self._options,
                    parts,
                    output,
                    self._streams,
                    own_socket,
                    self._connections,
                    self._tls,
                    trail,
                    self._standing,
                ) as (backend, access),
                own_history(self._options, parts) as history,
            ):
                parts.follower.start(parts.runtime.committed_index)
                self._tell_standby(parts, own_socket)
                async with taking_copies(
                    self._shared.name, self._connect(candidacy), parts.runtime, self._streams, output, history
                ):
                    await self._until_won(candidacy, stopping)
                try:
                    if candidacy.won.done() and not stopping.done():
                        await asyncio.to_thread(self._shared_keys(candidacy).lead, candidacy.won.result())
                        await self._lead(parts, candidacy, stopping, trail, output, backend, access, history)
                finally:
                    await self._end(parts, candidacy, stopping)
        finally:
            stopping.cancel()
            own_socket.close()
            if journal is not None:
                await asyncio.to_thread(journal.close)

    @contextlib.asynccontextmanager
    async def _state(self, journal: SharedJournal) -> AsyncIterator[tuple[Parts, Candidacy]]:
        """Recovered from local segments, and following."""
        options, began_s = self._options, time.monotonic()
        gc.disable()
        start = Start(options.data_dir, accept_lost_tail=False, is_shared=True)
        mark = AcknowledgedMark(options.data_dir)
        candidacy = Candidacy(
            self._engine, journal, _candidate(self._shared), lambda groups: _follow(parts, groups)
        )
        try:
            recovery = journal.recover()
            tell_recovery(recovery)
            parts = open_parts(options, start, recovery, journal, mark, self._on_committed, candidacy)
            self._standing.follow(candidacy.machine, candidacy.now_ms)
            self._peers.speak_for(self._standing, parts.runtime)
            _log.info(
                "state_recovered",
                index=recovery.index,
                tasks=len(parts.state.tasks),
                ms=round((time.monotonic() - began_s) * 1_000),
            )
            candidacy.on_complete = lambda: parts.start.check(parts.state, parts.runtime.committed_index)
            candidacy.on_leader = lambda: refuse_other_settings(options.settings, parts.state)
            candidacy.start()
            digests = Digests(
                self._engine,
                own=lambda: parts.follower.digest,
                term=lambda: candidacy.machine.term if candidacy.machine.leads else None,
                differs=candidacy.on_state_differs,
            )
            async with (
                digests.running(),
                self._shared_keys(candidacy).running(),
                followed(parts.runtime, parts.follower),
            ):
                yield parts, candidacy
        finally:
            await candidacy.close(resign=True)
            mark.close()

    async def _opened(self, listening: socket.socket, stopping: asyncio.Future[Any]) -> SharedJournal | None:
        """Waits for the engine. None: stopped meanwhile."""
        async with contextlib.AsyncExitStack() as waiting:
            is_waiting = False
            while not stopping.done():
                try:
                    await asyncio.to_thread(self._peers.refuse_taken_name)
                    return await asyncio.to_thread(open_copy, self._options, self._engine)
                except EngineUnavailable as error:
                    if not is_waiting:
                        is_waiting = True
                        _log.warning("engine_unavailable", reason=str(error))
                        await waiting.enter_async_context(waiting_room(listening, self._tls, str(error)))
                    await asyncio.wait((stopping,), timeout=_RETRY_S)
        return None

    def _connect(self, candidacy: Candidacy) -> Connect:
        from dgpu.service.grpc.copies import MasterLink

        authority = None if self._machines is None else self._machines.authority

        def connect(service: str) -> MasterLink | None:
            leader = candidacy.machine.leader
            return None if leader is None else MasterLink(leader.candidate.grpc, authority, service)

        return connect

    def _giving_content(self) -> contextlib.AbstractAsyncContextManager[None]:
        content = self._streams.files.content_copies
        return contextlib.nullcontext() if content is None else content.leading()

    async def _until_won(self, candidacy: Candidacy, stopping: asyncio.Future[Any]) -> None:
        await asyncio.wait((candidacy.won, candidacy.over, stopping), return_when=asyncio.FIRST_COMPLETED)
        if candidacy.over.done():
            candidacy.over.result()  # raises what an operator must handle

    async def _lead(
        self,
        parts: Parts,
        candidacy: Candidacy,
        stopping: asyncio.Future[Any],
        trail: AuditTrail,
        output: OutputStreams,
        backend: Backend,
        access: Access,
        history: OwnHistory,
    ) -> None:
        from dgpu.service.door import show_first_token

        options, runtime, before = self._options, parts.runtime, (parts.state.epoch, parts.state.last_at)
        beginning = runtime.start(parts.start.begin(options.settings))
        if not await _before_the_end(beginning, candidacy, stopping):
            return
        with contextlib.suppress(EngineUnavailable):  # the next epoch does it
            await asyncio.to_thread(self._engine.identify, parts.state.cluster_id)
        if output.copies is not None:
            await output.copies.lead(before, runtime.epoch)
        async with (
            self._trimming(parts, candidacy).running(),
            self._giving_content(),
            recorded(runtime, parts.follower, fresh_ms=options.rules.heartbeat_timeout_ms),
            agent_port(
                options, runtime, output, self._streams, self._connections, self._machines, trail, history
            ) as grpc_port,
            watched_alerts(options, runtime, self._standing) as alerts,
            sent_notices(options, parts),
            mirrored(options, runtime),
        ):
            if alerts is not None:
                backend.watch_alerts(alerts)
            self._standing.serves = True
            self._peers.on_leading(runtime.epoch)
            _log.info("role_changed", role="master", epoch=runtime.epoch, cause="won the leader key")
            showing = show_first_token(runtime, access, self._show_token)
            if await _before_the_end(showing, candidacy, stopping):
                _log.info(
                    "scheduler_ready", http=self._shared.http, grpc=self._shared.grpc, epoch=runtime.epoch
                )
                grpc = Address(host=options.grpc.host, port=grpc_port)
                self._ready(ServedAt(http=self._http, grpc=grpc, epoch=runtime.epoch))
            await asyncio.wait((candidacy.over, stopping), return_when=asyncio.FIRST_COMPLETED)
            self._standing.serves = not candidacy.over.done()
            if candidacy.over.done():
                # Before the ports close: nothing that this life still holds may leave.
                await self._abandon(parts, candidacy)

    def _shared_keys(self, candidacy: Candidacy) -> SharedKeys:
        machine = candidacy.machine
        return SharedKeys(
            self._options.data_dir,
            self._engine,
            accept_new=self._options.accept_new_keys,
            term=lambda: machine.term if machine.leads else None,
            differs=candidacy.on_state_differs,
        )

    def _trimming(self, parts: Parts, candidacy: Candidacy) -> Trimming:
        loop = asyncio.get_running_loop()

        def snapshot_soon() -> None:
            loop.call_soon_threadsafe(parts.follower.snapshot_soon)

        return Trimming(
            self._engine,
            candidacy.journal,
            candidacy.won.result(),
            self._options.data_dir,
            snapshot_soon=snapshot_soon,
            health=self._standing.engine_health,
            rules=self._shared.trim,
        )

    async def _end(self, parts: Parts, candidacy: Candidacy, stopping: asyncio.Future[Any]) -> None:
        if candidacy.over.done():
            await self._abandon(parts, candidacy)
            candidacy.over.result()
        elif stopping.done():
            _log.info("scheduler_stopping")

    async def _abandon(self, parts: Parts, candidacy: Candidacy) -> None:
        candidacy.step_down()
        if candidacy.over.exception() is None:
            _log.warning(
                "role_changed", role="standby", epoch=parts.runtime.epoch, cause=candidacy.over.result()
            )
        await parts.runtime.abandon()

    def _tell_standby(self, parts: Parts, own_socket: socket.socket) -> None:
        port = own_socket.getsockname()[1]
        self._http = Address(host=self._options.http.host, port=port)
        _log.info("role_changed", role="standby", epoch=parts.runtime.epoch, cause="follows the journal")
        self._ready(
            ServedAt(http=self._http, grpc=self._options.grpc, epoch=parts.runtime.epoch, role="standby")
        )


async def _before_the_end(
    work: Coroutine[Any, Any, object], candidacy: Candidacy, stopping: asyncio.Future[Any]
) -> bool:
    """False: over before the work was done. An engine without majority must not hold up a stop."""
    doing = asyncio.ensure_future(work)
    await asyncio.wait((doing, candidacy.over, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not doing.done():
        doing.cancel()
        return False
    with contextlib.suppress(NotMaster):
        await doing
    return True


def _candidate(shared: SharedOptions) -> Candidate:
    return Candidate(name=shared.name, http=shared.http, grpc=shared.grpc, nonce=secrets.token_hex(8))


def _follow(parts: Parts, groups: list[Group]) -> None:
    parts.runtime.follow(groups)
    parts.clock.follow(parts.state.last_at, parts.state.wall, is_live=len(groups) == 1)
