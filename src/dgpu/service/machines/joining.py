"""Where a new machine exchanges its token for a certificate. It has none yet, so the port of the agents, which asks for
one, is closed to it.

TLS, one JSON line each: the scheduler shows its authority, the machine compares that with the fingerprint of its token
and sends token and request, the scheduler answers. The machine's key never leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import ssl
from pathlib import Path

import msgspec
import structlog

from dgpu.journal.durable import write_file
from dgpu.service.audit.agents import AgentAudit
from dgpu.service.machines.authority import FOLDER, BadRequest, IssuedPair
from dgpu.service.machines.machines import Machines
from dgpu.service.machines.roster import JoinRefused
from dgpu.service.sqlite_files import FileUnusable
from dgpu.wire.address import Address
from dgpu.wire.machines import MAX_MESSAGE_BYTES, JoinAnswer, JoinGreeting, JoinRequest, MachineNames

PAIR_FILE = "scheduler.pem"  # Python's ssl reads keys only from files
MAX_AT_ONCE = 32
EXCHANGE_S = 15.0
_LOOK_S = 1.0

_log = structlog.get_logger("dgpu.machines")


class JoinDoor:
    def __init__(
        self, machines: Machines, data_dir: Path, *, grpc_port: int, audit: AgentAudit | None = None
    ) -> None:
        self._machines = machines
        self._pair_file = data_dir / FOLDER / PAIR_FILE
        self._grpc_port = grpc_port
        self._audit = audit
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._loaded: IssuedPair | None = None
        self._open = 0
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self, address: Address) -> int:
        """Returns the port. Raises OSError."""
        self._load_certificate()
        try:
            self._server = await asyncio.start_server(
                self._serve,
                address.host or None,
                address.port,
                limit=MAX_MESSAGE_BYTES,
                ssl=self._tls,
                ssl_handshake_timeout=EXCHANGE_S,
            )
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen on {address} for joining machines: {error.strerror}"
            ) from error
        self._looking = asyncio.create_task(self._keep_certificate())
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._server is not None:
            self._server.close()

    async def _keep_certificate(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._load_certificate()
            except OSError as error:
                _log.warning("certificate_not_written", error=error.strerror)

    def _load_certificate(self) -> None:
        pair = self._machines.certificate.current()
        if pair is not self._loaded:
            write_file(self._pair_file, pair.key_pem + pair.certificate_pem)
            self._tls.load_cert_chain(self._pair_file)
            self._loaded = pair

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_AT_ONCE:
                async with asyncio.timeout(EXCHANGE_S):
                    await self._exchange(reader, writer)
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            pass  # the machine left, is silent, or sends no line: it hears no answer
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = JoinGreeting(authority=self._machines.authority.certificate_pem.decode())
        writer.write(msgspec.json.encode(greeting) + b"\n")
        await writer.drain()
        content = await reader.readuntil(b"\n")
        answer = await self._answer(content, str(writer.get_extra_info("peername")[0]))
        writer.write(msgspec.json.encode(answer) + b"\n")
        await writer.drain()

    async def _answer(self, content: bytes, peer: str) -> JoinAnswer:
        try:
            request = msgspec.json.decode(content, type=JoinRequest)
            granted = await asyncio.to_thread(self._machines.admit, request)
        except msgspec.DecodeError:
            return JoinAnswer(error="the request cannot be read")
        except (JoinRefused, BadRequest) as error:
            _log.warning("join_refused", peer=peer, join=request.join_id[:16], reason=str(error))
            if self._audit is not None:
                self._audit.refused(
                    "agent.join", "join_refused", peer, subject=f"join {request.join_id[:16]}"
                )
            return JoinAnswer(error=str(error))
        except (sqlite3.Error, FileUnusable) as error:
            _log.error("machines_unreadable", error=str(error))
            return JoinAnswer(error="the scheduler cannot read its list of machines; its log has the reason")
        _log.info("machine_joined", peer=peer, join=request.join_id, nodes=granted.nodes[:8])
        if self._audit is not None:
            names = MachineNames(join_id=request.join_id, nodes=frozenset(granted.nodes))
            self._audit.done("agent.join", peer, names)
        return JoinAnswer(
            certificate=granted.certificate_pem.decode(),
            nodes=granted.nodes,
            grpc_port=self._grpc_port,
            member=granted.member,
        )
