"""Gives certificates to machines and decides whose are accepted. Reads and writes files: for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization

from dgpu.service.machines.authority import Authority, key_of_request, load_authority
from dgpu.service.machines.certificate import SchedulerCertificate
from dgpu.service.machines.member_grants import grant_member
from dgpu.service.machines.roster import Join, JoinRefused, Roster
from dgpu.wire.machines import JoinRequest, MachineNames, MemberGrant

_NO_NAMES = "the certificate names no node"
_UNKNOWN = "the certificate comes from a join that is not known here"


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    certificate_pem: bytes
    nodes: tuple[str, ...]
    member: MemberGrant | None = None  # of the engine


class Machines:
    def __init__(self, data_dir: Path, *, lifetime_s: int, clock: Callable[[], float] = time.time) -> None:
        """Raises AuthorityMissing."""
        self.authority: Authority = load_authority(data_dir)
        self._data_dir = data_dir
        self.roster = Roster(data_dir)
        self._lifetime_s = lifetime_s
        self._clock = clock
        self.certificate = SchedulerCertificate(self.authority, lifetime_s=lifetime_s, clock=clock)

    def why_refused(self, names: MachineNames | None) -> str:
        """Why a caller with such a certificate is refused; empty: it is not. TLS has checked the certificate itself."""
        if names is None:
            return _NO_NAMES
        join = self.roster.find(names.join_id)
        if join is None:
            return _UNKNOWN
        return join.why_refused(int(self._clock()))

    def fallen(self, join_ids: Collection[str]) -> dict[str, str]:
        """Those of the joins whose certificates are no longer accepted, each with the reason."""
        now_s = int(self._clock())
        return {join.id: join.why_refused(now_s) for join in self.roster.fallen(now_s) if join.id in join_ids}

    def admit(self, request: JoinRequest) -> Granted:
        """Exchanges a token for a certificate. Raises JoinRefused or BadRequest."""
        csr_pem = request.csr.encode()
        public_key = key_of_request(csr_pem).public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        join = self.roster.redeem(
            request.join_id, request.secret, public_key, now_s=int(self._clock()), kind=request.kind
        )
        if join.kind != "agent":
            return self._grant_member(csr_pem, join)
        return self._grant(csr_pem, join.names)

    def renew(self, names: MachineNames, csr_pem: bytes) -> Granted:
        """Raises JoinRefused or BadRequest."""
        if why := self.why_refused(names):
            raise JoinRefused(why)
        return self._grant(csr_pem, names)

    def _grant_member(self, csr_pem: bytes, join: Join) -> Granted:
        certificate_pem, grant = grant_member(
            self._data_dir, self.authority, join, csr_pem, now_s=int(self._clock())
        )
        self.roster.note_certificate(join.id, self.authority.expires_at_s)
        return Granted(certificate_pem=certificate_pem, nodes=join.nodes, member=grant)

    def _grant(self, csr_pem: bytes, names: MachineNames) -> Granted:
        issued = self.authority.issue_agent(
            csr_pem, names, now_s=int(self._clock()), lifetime_s=self._lifetime_s
        )
        self.roster.note_certificate(names.join_id, issued.expires_at_s)
        return Granted(certificate_pem=issued.certificate_pem, nodes=tuple(sorted(names.nodes)))
