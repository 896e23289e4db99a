"""Words that the scheduler and its agents share about certificates: names in them, and the token of a new machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

# In the scheduler's certificate, whatever its host is called: only the cluster's own authority gives out this name.
SCHEDULER_NAME = "dgpu-scheduler"
MEMBER_NAME = (
    "dgpu-member"  # of the engine: agents have certificates of the same authority, but not this name
)
PEER_NAME = "dgpu-peer"  # of a scheduler that calls another one
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_NODES = 256  # of one certificate: with more, the TLS handshake becomes too large
MAX_MESSAGE_BYTES = 64 << 10  # of one line between a joining machine and the scheduler

_NODE = "dgpu:node:"
_JOIN = "dgpu:join:"
_TOKEN = "dgpuj_"  # noqa: S105 - how a token begins
_ID = re.compile(r"[0-9a-f]{16}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


JoinKind = Literal["agent", "scheduler", "witness"]  # the last two are members of the engine


class MachineNames(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate of a machine says: the join that it comes from, and the nodes that it may act for."""

    join_id: str
    nodes: frozenset[str]


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    join_id: str
    secret: str
    fingerprint: str = ""  # of the cluster's authority

    def __str__(self) -> str:
        return _TOKEN + ".".join(filter(None, (self.join_id, self.secret, self.fingerprint)))

    def __repr__(self) -> str:
        return f"JoinToken(join_id={self.join_id!r})"  # tokens of a traceback must not work


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    join_id: str
    secret: str
    csr: str
    kind: JoinKind = "agent"


class JoinGreeting(msgspec.Struct, frozen=True, kw_only=True):
    """Sent by the scheduler first. The machine compares it with the fingerprint before it says anything secret."""

    authority: str


class MemberGrant(msgspec.Struct, frozen=True, kw_only=True):
    """For a machine that joins as a member of the engine."""

    role: Literal["scheduler", "witness"]
    me: str
    members: tuple[str, ...]
    cluster: str  # of the engine
    files: dict[str, str] = {}  # keys that all schedulers share, base64 by name

    def __repr__(self) -> str:
        return f"MemberGrant(me={self.me!r})"  # no key in a log


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    certificate: str = ""
    nodes: tuple[str, ...] = ()
    grpc_port: int = 0
    member: MemberGrant | None = None
    error: str = ""


def parse_token(text: str) -> JoinToken:
    """ValueError says what is wrong, without a part of the token."""
    parts = text.strip().removeprefix(_TOKEN).split(".")
    if not text.strip().startswith(_TOKEN) or len(parts) not in {2, 3}:
        raise ValueError(f"expected a token of `dgpu ca token`, which begins with {_TOKEN}")
    if not _ID.fullmatch(parts[0]) or not _SECRET.fullmatch(parts[1]):
        raise ValueError("the token is not complete")
    fingerprint = parse_fingerprint(parts[2]) if len(parts) == 3 else ""
    return JoinToken(join_id=parts[0], secret=parts[1], fingerprint=fingerprint)


def parse_fingerprint(text: str) -> str:
    plain = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _FINGERPRINT.fullmatch(plain):
        raise ValueError("a fingerprint has 64 hexadecimal digits (SHA-256)")
    return plain


def fingerprint_of(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def uris_of(names: MachineNames) -> list[str]:
    return [_JOIN + names.join_id, *(_NODE + node for node in sorted(names.nodes))]


def names_in(uris: Iterable[str]) -> MachineNames | None:
    """None: not the certificate of a machine."""
    joins: list[str] = []
    nodes: set[str] = set()
    for uri in uris:
        if uri.startswith(_JOIN):
            joins.append(uri.removeprefix(_JOIN))
        elif uri.startswith(_NODE):
            nodes.add(uri.removeprefix(_NODE))
    if len(joins) != 1 or not nodes:
        return None
    return MachineNames(join_id=joins[0], nodes=frozenset(nodes))
