"""Opens and closes the agents' port: plain text on loopback, or TLS with certificates and a port for new machines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import structlog

from dgpu.service.audit.agents import AgentAudit
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.history.copying import OwnHistory
from dgpu.service.loop.runtime import Runtime
from dgpu.service.node_streams import NodeStreams
from dgpu.service.open_files import AgentConnections
from dgpu.service.options import OptionsRefused, ServiceOptions
from dgpu.service.task_output.streams import OutputStreams

if TYPE_CHECKING:
    from dgpu.service.machines.machines import Machines

_log = structlog.get_logger("dgpu.server")


def open_machines(options: ServiceOptions) -> Machines | None:
    """None: agents use plain text. Raises OptionsRefused without an authority, before the state is touched."""
    if options.machines is None:
        if not options.grpc.is_loopback:
            _log.warning("agents_unprotected", grpc=str(options.grpc), cause="plain text, auth.mode none")
        return None
    from dgpu.service.machines.authority import AuthorityMissing
    from dgpu.service.machines.machines import Machines

    try:
        return Machines(options.data_dir, lifetime_s=options.machines.certificate_lifetime_s)
    except AuthorityMissing as error:
        raise OptionsRefused(f"server.grpc_tls: {error}") from error


@contextlib.asynccontextmanager
async def agent_port(
    options: ServiceOptions,
    runtime: Runtime,
    output: OutputStreams,
    streams: NodeStreams,
    connections: AgentConnections,
    machines: Machines | None,
    trail: AuditTrail,
    history: OwnHistory | None = None,
) -> AsyncIterator[int]:
    """Listens for agents; with TLS, for machines that join too. Standbys may read `history`. Raises OSError."""
    from dgpu.service.grpc.copies import content_methods, copy_methods, history_methods
    from dgpu.service.grpc.server import AgentServer

    gate = None
    if machines is not None:
        from dgpu.service.machines.gate import Gate

        gate = Gate(machines)
    is_open = options.auth_mode == "none"
    audit = AgentAudit(trail, "certificate" if gate is not None else "open" if is_open else "uid")
    runtime.on_remark = audit.on_remark
    output.on_complaint = audit.on_complaint
    server = AgentServer(
        runtime,
        output,
        streams.files,
        streams.channels,
        trusts_all=is_open,
        counts=connections,
        gate=gate,
        audit=audit,
    )
    if output.copies is not None:
        server.give(partial(copy_methods, output.copies))
    if streams.files.content_copies is not None:
        server.give(partial(content_methods, streams.files.content_copies))
    if history is not None:
        server.give(partial(history_methods, history))
    port = await server.start(options.grpc.host, options.grpc.port)
    try:
        async with _joining(options, machines, port, audit):
            yield port
    finally:
        if output.copies is not None:
            output.copies.wake()
        if streams.files.content_copies is not None:
            streams.files.content_copies.wake()
        await server.stop()


@contextlib.asynccontextmanager
async def _joining(
    options: ServiceOptions, machines: Machines | None, grpc_port: int, audit: AgentAudit
) -> AsyncIterator[None]:
    if options.machines is None or machines is None:
        yield
        return
    from dgpu.service.machines.deeds import take_over
    from dgpu.service.machines.joining import JoinDoor

    door = JoinDoor(machines, options.data_dir, grpc_port=grpc_port, audit=audit)
    port = await door.start(options.machines.join)
    _log.info("joining_open", port=port, fingerprint=machines.authority.fingerprint)
    recording = asyncio.create_task(take_over(machines.roster, audit.record_deed), name="deeds of dgpu ca")
    try:
        yield
    finally:
        recording.cancel()
        await door.stop()
