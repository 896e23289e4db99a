"""`dgpu ha join`: a second scheduler or a witness exchanges a one-time token for its place in the cluster."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from dgpu.agent.certificate import CertificateFiles, request_for
from dgpu.agent.joining import JoinFailed, SchedulerUnreachable, exchange, first_answer
from dgpu.entry.ha.engine_cluster import EngineCluster, engine_settings
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.etcd_program import find_etcd
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.journal.errors import JournalError
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.fetched import begin_from_engine
from dgpu.journal.segments import JOURNAL_FOLDER
from dgpu.service.machines.member_marker import Member, Role
from dgpu.wire.address import Address, address_list, parse_address
from dgpu.wire.machines import JoinAnswer, JoinToken, MemberGrant, parse_token


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    role: str
    me: str
    members: tuple[str, ...]
    index: int  # of the snapshot that a scheduler got; 0: none


def join_cluster(directory: Path, server: str, token_text: str, role: Role) -> JoinedMember:
    """Repeating it after a failure goes on where it stopped. Raises HaFailure."""
    files = MemberFiles(directory)
    present = files.read()
    if present is not None:
        raise HaFailure(
            f"{directory} belongs to member {present.me} already. Start it: "
            f"{'dgpu scheduler' if present.role == 'scheduler' else 'dgpu witness'}"
        )
    find_etcd()
    grant = _exchange(files, server, token_text, role)
    _save_shared(directory, grant)
    me = MemberAddress.parse(grant.me)
    cluster = EngineCluster(files, [each for each in grant.members if each != grant.me])
    known = next((member for member in cluster.members() if member.address == grant.me), None)
    if known is not None and known.is_started:
        raise HaFailure(
            f"{grant.me} is a member already, with data of its own. If those are lost: "
            f"dgpu ha replace-member {grant.me}"
        )
    others = engine_settings(files, [each for each in grant.members if each != grant.me])
    index = fetch_state(directory, others) if grant.role == "scheduler" else 0
    cluster.add_learner(me)
    peers = tuple(member.address for member in cluster.members())
    files.write(
        Member(
            cluster=grant.cluster,
            role=grant.role,
            me=grant.me,
            members=grant.members,
            first_peers=peers,
            is_first=False,
        )
    )
    return JoinedMember(
        directory=str(directory), role=grant.role, me=grant.me, members=grant.members, index=index
    )


def _exchange(files: MemberFiles, server: str, token_text: str, role: Role) -> MemberGrant:
    try:
        addresses = [parse_address(text) for text in address_list(server) or [server]]
        token = parse_token(token_text)
    except ValueError as error:
        raise HaFailure(str(error)) from None
    keys = CertificateFiles(files.tls)  # a join that is tried again uses the same key
    try:
        key_pem = keys.joining_key()
        authority_pem, answer = _ask_first(addresses, token, request_for(key_pem), role)
    except OSError as error:
        raise HaFailure(f"{files.tls} cannot be written: {error.strerror}") from error
    if answer.error:
        keys.forget_joining_key()
        raise HaFailure(f"The scheduler refused: {answer.error}")
    if answer.member is None:
        raise HaFailure("The scheduler sent no list of members")
    files.write_certificate(
        key_pem=key_pem, certificate_pem=answer.certificate.encode(), authority_pem=authority_pem
    )
    return answer.member


def _ask_first(
    addresses: list[Address], token: JoinToken, csr_pem: bytes, role: Role
) -> tuple[bytes, JoinAnswer]:
    try:
        return first_answer(addresses, lambda address: exchange(address, token, csr_pem, role))
    except SchedulerUnreachable as error:
        reasons = "; ".join(str(error).splitlines())
        raise HaFailure(
            f"{reasons}. Only the scheduler that leads lets machines join (dgpu ha status names it): give the "
            f"server.join_address of both schedulers, with a comma between them"
        ) from error
    except JoinFailed as error:
        raise HaFailure(str(error)) from error


def _save_shared(directory: Path, grant: MemberGrant) -> None:
    """Keys of another cluster stay: mixing two clusters in one directory would lose one of them."""
    for name, encoded in grant.files.items():
        path, content = directory / name, base64.b64decode(encoded)
        if path.exists() and path.read_bytes() != content:
            raise HaFailure(
                f"{path} belongs to another cluster or was made by a start of this scheduler. Join with a new "
                f"directory, or move {directory} away"
            )
        make_folder(path.parent)
        write_file(path, content)
        sync_folder(path.parent)


def fetch_state(directory: Path, settings: EtcdSettings) -> int:
    """The directory gets the state before the first group of the engine. Returns its index; 0: there is none."""
    if (directory / JOURNAL_FOLDER).is_dir():
        raise HaFailure(f"{directory} has a journal of its own. Join with a new directory, or move it away")
    engine = EtcdEngine(settings)
    try:
        fetched = begin_from_engine(directory, engine)
    except JournalError as error:
        raise HaFailure(str(error)) from error
    except OSError as error:
        raise HaFailure(f"{directory} cannot be written: {error.strerror}") from error
    finally:
        engine.close()
    return fetched.index if fetched is not None else 0
