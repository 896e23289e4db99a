"""The whole service in one loop: journal, machine, gRPC for agents, HTTP for clients, and the follower process beside
it.

Listening starts first, so that a client that connects during the recovery waits instead of failing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from dgpu.core_form import FORM
from dgpu.file_limit import file_limit
from dgpu.journal.file import FileJournal
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.agent_port import agent_port, open_machines
from dgpu.service.audit.trail import audit_trail
from dgpu.service.node_streams import node_streams
from dgpu.service.open_files import AgentConnections, budget_of
from dgpu.service.options import ServedAt, ServiceOptions, check_options
from dgpu.service.outlets import (
    http_port,
    https_context,
    mirrored,
    sent_notices,
    stored_content,
    stored_output,
    watched_alerts,
)
from dgpu.service.parts import OnCommitted, Parts, followed, open_parts, recorded, tell_recovery
from dgpu.service.recovery.start import Start
from dgpu.wire.address import Address

if TYPE_CHECKING:
    from dgpu.journal.engine import Engine
    from dgpu.service.machines.machines import Machines

_BACKLOG = 1_024

_log = structlog.get_logger("dgpu.server")


async def serve(
    options: ServiceOptions,
    ready_callback: Callable[[ServedAt], None] | None = None,
    *,
    on_committed: OnCommitted | None = None,
    stop: asyncio.Event | None = None,
    show_token: Callable[[str], None] | None = None,  # gets the first token of a new cluster, once
    engine: Engine | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or `stop`. Raises OptionsRefused, JournalError or OSError if it cannot start.

    `engine`: instead of the one that the options name.
    """
    # Only the follower is forked, and it calls exec at once: gRPC need not prepare for forks. Set before gRPC has
    # threads: they read the environment, and a change at the same time ends the process with SIGSEGV.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    check_options(options)
    machines = open_machines(options)
    _stop_on_signals(stop := stop or asyncio.Event())
    http_socket = _listen(options.http)
    rules = msgspec.structs.replace(options.rules, rest_url=_rest_url(options, http_socket))
    options = msgspec.structs.replace(options, rules=rules)
    if options.shared is not None:
        from dgpu.service.leadership.serving import serve_shared

        with contextlib.closing(http_socket):
            await serve_shared(
                options,
                http_socket,
                machines,
                stop,
                ready_callback or (lambda _: None),
                on_committed=on_committed,
                show_token=show_token,
                engine=engine,
            )
        return
    await _serve_alone(options, http_socket, machines, stop, ready_callback, on_committed, show_token)


async def _serve_alone(
    options: ServiceOptions,
    http_socket: socket.socket,
    machines: Machines | None,
    stop: asyncio.Event,
    ready_callback: Callable[[ServedAt], None] | None,
    on_committed: OnCommitted | None,
    show_token: Callable[[str], None] | None,
) -> None:
    from dgpu.service.door import show_first_token

    streams = node_streams(stored_content(options))
    connections = AgentConnections(max=budget_of(file_limit()).agents)
    async with (
        https_context(options) as tls,
        _lone_state(options, on_committed) as parts,
        audit_trail(parts.runtime) as trail,
        stored_output(options, parts.runtime) as output,
        agent_port(options, parts.runtime, output, streams, connections, machines, trail) as grpc_port,
        watched_alerts(options, parts.runtime) as alerts,
        sent_notices(options, parts),
        mirrored(options, parts.runtime),
        http_port(options, parts, output, streams, http_socket, connections, tls, trail) as (backend, access),
    ):
        if alerts is not None:
            backend.watch_alerts(alerts)
        await show_first_token(parts.runtime, access, show_token)
        at = ServedAt(
            http=Address(host=options.http.host, port=http_socket.getsockname()[1]),
            grpc=Address(host=options.grpc.host, port=grpc_port),
            epoch=parts.runtime.epoch,
        )
        parts.follower.start(parts.runtime.committed_index)  # last: its start must not delay the first answer
        _log.info("role_changed", role="master", epoch=at.epoch, cause="started")
        _log.info("scheduler_ready", http=str(at.http), grpc=str(at.grpc), epoch=at.epoch, core=FORM)
        if ready_callback is not None:
            ready_callback(at)
        await stop.wait()
        _log.info("scheduler_stopping")


@contextlib.asynccontextmanager
async def _lone_state(options: ServiceOptions, on_committed: OnCommitted | None) -> AsyncIterator[Parts]:
    """Recovered and running. At the end everything is committed, and the follower writes the last snapshot."""
    began_s = time.monotonic()
    gc.disable()
    start = Start(options.data_dir, accept_lost_tail=options.accept_lost_tail)
    journal = FileJournal.open(options.data_dir, segment_bytes=options.segment_bytes)
    mark = AcknowledgedMark(options.data_dir)
    try:
        recovery = start.recover(journal)
        tell_recovery(recovery)
        parts = open_parts(options, start, recovery, journal, mark, on_committed)
        await parts.runtime.start(start.begin(options.settings))
        milliseconds = round((time.monotonic() - began_s) * 1_000)
        _log.info("state_recovered", index=recovery.index, tasks=len(parts.state.tasks), ms=milliseconds)
        async with (
            followed(parts.runtime, parts.follower),
            recorded(parts.runtime, parts.follower, fresh_ms=options.rules.heartbeat_timeout_ms),
        ):
            yield parts
    finally:
        journal.close()
        mark.close()


def _rest_url(options: ServiceOptions, listening: socket.socket) -> str:
    """As in Welcome: without a host if any name of this machine will do."""
    if options.shared is not None:
        return options.shared.http
    host = "" if options.http.host in {"0.0.0.0", "::"} else options.http.host  # noqa: S104 - is not bound here
    scheme = "http" if options.http_tls is None else "https"
    return f"{scheme}://{Address(host=host, port=listening.getsockname()[1])}"


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
