"""The agents' port with TLS: which machine calls, and whether it may. Files are read in threads, not in the loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import grpc
import structlog

from dgpu.service.machines.authority import BadRequest
from dgpu.service.machines.caller import Caller, Refused
from dgpu.service.machines.machines import Machines
from dgpu.service.machines.roster import JoinRefused
from dgpu.service.sqlite_files import FileUnusable
from dgpu.wire.machines import PEER_NAME, MachineNames, names_in

_log = structlog.get_logger("dgpu.machines")
T = TypeVar("T")


class Call(Protocol):
    """What this needs of a gRPC call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class Gate:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.credentials: grpc.ServerCredentials = machines.certificate.server_credentials()

    def names_of(self, call: Call) -> MachineNames | None:
        """Of the certificate that the caller has shown; None: it names no node."""
        return names_in(uri.decode(errors="replace") for uri in call.auth_context().get("peer_uri", ()))

    def is_scheduler(self, call: Call) -> bool:
        """Only the cluster's own authority gives out this name, and only schedulers have its key."""
        names = call.auth_context().get("x509_subject_alternative_name", ())
        return PEER_NAME.encode() in names

    async def caller(self, call: Call) -> Caller:
        """TLS has checked that the certificate is of this cluster and in date. Raises Refused."""
        names = self.names_of(call)
        if why := await _asked(self._machines.why_refused, names):
            raise Refused(why)
        return Caller(names=names)

    async def renew(self, call: Call, csr_pem: bytes) -> bytes:
        """Raises Refused."""
        names = (await self.caller(call)).names
        assert names is not None  # noqa: S101 - a caller without names is refused
        granted = await _asked(self._machines.renew, names, csr_pem)
        _log.info("certificate_renewed", join=names.join_id, nodes=granted.nodes[:8])
        return granted.certificate_pem

    async def fallen(self, join_ids: Collection[str]) -> dict[str, str]:
        """If the list of machines cannot be read, streams that are open stay open."""
        if not join_ids:
            return {}
        try:
            return await asyncio.to_thread(self._machines.fallen, join_ids)
        except (sqlite3.Error, FileUnusable) as error:
            _log.error("machines_unreadable", error=str(error))
            return {}


async def _asked(question: Callable[..., T], *values: Any) -> T:
    try:
        return await asyncio.to_thread(question, *values)
    except (JoinRefused, BadRequest) as error:
        raise Refused(str(error)) from error
    except (sqlite3.Error, FileUnusable) as error:
        _log.error("machines_unreadable", error=str(error))
        raise Refused("the scheduler cannot read its list of machines; its log has the reason") from error
