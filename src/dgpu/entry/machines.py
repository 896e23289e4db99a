"""`dgpu ca` and `dgpu agent join`: works on the files of a scheduler or an agent on this machine."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dgpu.wire.address import Address
from dgpu.wire.machines import MAX_NODES, NODE_ID, JoinToken, parse_fingerprint, parse_token

if TYPE_CHECKING:
    from dgpu.agent.joining import Joined
    from dgpu.entry.config_types import AgentConfig
    from dgpu.service.machines.roster import Join, Roster


class MachineFailure(Exception):  # noqa: N818 - it says what happened
    """The text says what to do."""


class NoAnswer(MachineFailure):
    """The scheduler cannot be reached."""


class JoinRow(msgspec.Struct, frozen=True, kw_only=True):
    join: str
    nodes: tuple[str, ...]
    status: str  # invited, unused, joined, expired, revoked
    joined_at: str | None
    expires_at: str | None  # of the token, then of the certificate


class JoinedNodes(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[str, ...]
    directory: Path
    schedulers: tuple[str, ...]  # addresses for agents
    unnamed: tuple[str, ...]  # nodes of the configuration that the certificate does not name


def make_authority(data_dir: Path) -> tuple[str, bool]:
    """The fingerprint, and whether the authority is new."""
    from dgpu.service.machines.authority import create_authority

    with _told():
        authority, is_new = create_authority(data_dir, now_s=_now_s())
        if is_new:
            _roster(data_dir).note_authority(authority.fingerprint, now_s=_now_s())
    return authority.fingerprint, is_new


def authority_pem(data_dir: Path) -> str:
    from dgpu.service.machines.authority import load_authority

    with _told():
        return load_authority(data_dir).certificate_pem.decode()


def invite(data_dir: Path, nodes: tuple[str, ...], lifetime_s: int) -> JoinToken:
    from dgpu.service.machines.authority import load_authority

    for node in nodes:
        if not NODE_ID.fullmatch(node):
            raise MachineFailure(f"{node!r} is not the id of a node: letters, digits, dot, dash, underscore.")
    if len(set(nodes)) != len(nodes) or len(nodes) > MAX_NODES:
        raise MachineFailure(f"A certificate names up to {MAX_NODES} nodes, each once.")
    with _told():
        authority = load_authority(data_dir)
        join, secret = _roster(data_dir).invite(nodes, now_s=_now_s(), lifetime_s=lifetime_s)
    return JoinToken(join_id=join.id, secret=secret, fingerprint=authority.fingerprint)


def list_joins(data_dir: Path) -> list[JoinRow]:
    with _told():
        return [_row(join) for join in _roster(data_dir).joins()]


def revoke(data_dir: Path, node: str) -> list[JoinRow]:
    with _told():
        return [_row(join) for join in _roster(data_dir).revoke(node, now_s=_now_s())]


def join_cluster(
    config: AgentConfig, server: str, token_text: str, fingerprint: str | None, directory: Path | None
) -> JoinedNodes:
    """Several schedulers have commas between; the first one that answers decides."""
    from dgpu.entry.agent import agent_options, tls_dir
    from dgpu.wire.address import address_list, parse_address

    try:
        addresses = [parse_address(text) for text in address_list(server) or [server]]
        token = parse_token(token_text)
        if fingerprint is not None:
            token = msgspec.structs.replace(token, fingerprint=parse_fingerprint(fingerprint))
    except ValueError as error:
        raise MachineFailure(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
    if not token.fingerprint:
        raise MachineFailure(
            "The token has no fingerprint of the scheduler's authority; add --ca-fingerprint."
        )
    target = directory.expanduser().absolute() if directory is not None else tls_dir(config)
    joined = _join_first(addresses, token, target)
    named = joined.certificate.names.nodes
    wanted = [str(node.id) for node in agent_options(config).nodes]
    return JoinedNodes(
        nodes=tuple(sorted(named)),
        directory=target,
        # The schedulers of a cluster usually use the same ports.
        schedulers=tuple(str(Address(host=each.host, port=joined.grpc_port)) for each in addresses),
        unnamed=tuple(node_id for node_id in wanted if node_id not in named),
    )


def _join_first(addresses: Sequence[Address], token: JoinToken, target: Path) -> Joined:
    from dgpu.agent.joining import JoinFailed, SchedulerUnreachable, first_answer, join

    try:
        return first_answer(addresses, lambda address: join(address, token, target))
    except SchedulerUnreachable as error:
        raise NoAnswer(str(error)) from error
    except JoinFailed as error:
        raise MachineFailure(str(error)) from error
    except OSError as error:
        raise MachineFailure(f"{target} cannot be written: {error.strerror}.") from error


def _roster(data_dir: Path) -> Roster:
    from dgpu.service.machines.authority import load_authority
    from dgpu.service.machines.roster import Roster

    load_authority(data_dir)  # a wrong directory is noticed before a file is made in it
    return Roster(data_dir)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    from dgpu.service.machines.authority import AuthorityMissing
    from dgpu.service.sqlite_files import FileUnusable

    try:
        yield
    except AuthorityMissing as error:
        raise MachineFailure(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except OSError as error:
        raise MachineFailure(f"{error.filename}: {error.strerror}.") from error
    except (sqlite3.Error, FileUnusable) as error:
        raise MachineFailure(f"The list of machines cannot be used: {error}.") from error


def _row(join: Join) -> JoinRow:
    expires_at_s = join.certificate_expires_at_s or join.token_expires_at_s
    is_over = _now_s() >= expires_at_s
    if join.revoked_at_s:
        status = "revoked"
    elif join.joined_at_s:
        status = "expired" if is_over else "joined"
    else:
        status = "unused" if is_over else "invited"
    return JoinRow(
        join=join.id,
        nodes=join.nodes,
        status=status,
        joined_at=_instant(join.joined_at_s),
        expires_at=_instant(expires_at_s),
    )


def _instant(at_s: int) -> str | None:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z") if at_s else None


def _now_s() -> int:
    return int(time.time())
