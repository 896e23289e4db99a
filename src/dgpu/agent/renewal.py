"""Keeps the certificate of this machine valid: a new key and a new certificate, well before the old one expires.

Open streams stay on the old certificate. New ones use the new certificate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio
import structlog

from dgpu.agent.certificate import (
    Certificate,
    CertificateFiles,
    new_key,
    read_certificate,
    request_for,
)
from dgpu.agent.channel import CertificateUnusable, open_tls
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

RENEW = "/dgpu.agent.v1.Agents/Renew"
_LOOK_S = 60.0  # the wall clock may be set meanwhile
_PAUSE_S = 1.0
_RETRY_S = 10.0
_ANSWER_S = 10.0

_log = structlog.get_logger("dgpu.agent")


class MachineCertificate:
    """The current certificate, replaced by each renewal."""

    def __init__(self, files: CertificateFiles, node_ids: Sequence[NodeId]) -> None:
        """Raises CertificateUnusable if the certificate has expired or does not name every node of this agent."""
        self._files = files
        self.current = files.load()
        if why := _why_useless(self.current, node_ids):
            raise CertificateUnusable(f"{why} ({files.directory}). Join again: dgpu agent join")

    def open_channel(self, address: str) -> grpc.aio.Channel:
        return open_tls(address, self.current)

    async def keep_renewed(self, addresses: Sequence[str], renew_before_s: float) -> None:
        """Runs until it is cancelled. The schedulers are asked in turn."""
        turn = 0
        while True:
            left_s = self.current.renew_at_s(renew_before_s) - time.time()
            if left_s > 0:
                await asyncio.sleep(min(left_s, _LOOK_S))
                continue
            try:
                await self._renew(addresses[turn % len(addresses)])
                await asyncio.sleep(_PAUSE_S)
            except (grpc.aio.AioRpcError, OSError, ValueError) as error:
                turn += 1
                self._tell_failed(error)
                await asyncio.sleep(_RETRY_S)

    async def _renew(self, address: str) -> None:
        key_pem = new_key()
        async with self.open_channel(address) as channel:
            method = channel.unary_unary(
                RENEW,
                request_serializer=pb.RenewRequest.SerializeToString,
                response_deserializer=pb.Renewed.FromString,
            )
            renewed = await method(pb.RenewRequest(csr=request_for(key_pem)), timeout=_ANSWER_S)
        fresh = read_certificate(key_pem, renewed.certificate, self.current.authority_pem)
        self._files.save(fresh)
        self.current = fresh
        _log.info("certificate_renewed", expires_in_s=round(fresh.expires_at_s - time.time()))

    def _tell_failed(self, error: Exception) -> None:
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        left_s = round(self.current.expires_at_s - time.time())
        if left_s > 0:
            _log.warning("certificate_not_renewed", expires_in_s=left_s, error=detail)
        else:
            _log.error("certificate_expired", error=detail, advice="join again: dgpu agent join")


def _why_useless(certificate: Certificate, node_ids: Sequence[NodeId]) -> str:
    if certificate.expires_at_s <= time.time():
        return "the certificate of this machine has expired"
    unnamed = [node_id for node_id in node_ids if node_id not in certificate.names.nodes]
    if not unnamed:
        return ""
    named = ", ".join(sorted(certificate.names.nodes)[:8])
    return f"the certificate of this machine names {named}, not {unnamed[0]}"
