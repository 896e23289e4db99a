"""Calls about the engine's members: list, state, add, promote, remove, and its upkeep. People never type them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dgpu.entry.ha.errors import EngineSilent, HaFailure, NotSettled
from dgpu.entry.ha.member_command import QUOTA_BYTES
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.journal.engine import EngineError, EngineRefused, EngineUnavailable
from dgpu.journal.etcd.connection import Connection
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.wire.address import Address, parse_address
from dgpu.wire.proto import etcd_pb2 as pb

PREFIX = "/dgpu/"  # the engine holds nothing else
_CLUSTER = "/etcdserverpb.Cluster/"
_MAINTENANCE = "/etcdserverpb.Maintenance/"
_PATIENCE_S = 5.0
_DEFRAGMENT_S = 300.0  # a member answers nothing meanwhile
_SETTLE_S = 60.0  # etcd takes a new member only when all others have been connected for 5 s
_SETTLE_PAUSE_S = 1.0
_NOT_SETTLED = "a member does not run. Start it, or replace it: dgpu ha replace-member"


class EngineMember(msgspec.Struct, frozen=True, kw_only=True):
    """As the cluster lists it."""

    id: int
    address: str  # as in ha.members
    is_learner: bool
    is_started: bool  # it has told its name


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """As the member itself says. `trouble`: why it does not answer."""

    address: str
    id: int = 0
    version: str = ""
    is_leader: bool = False
    is_learner: bool = False
    db_bytes: int = 0
    used_bytes: int = 0
    alarms: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def answers(self) -> bool:
        return not self.trouble


def engine_settings(files: MemberFiles, addresses: Sequence[str]) -> EtcdSettings:
    """How this machine reaches the engine: with the certificate of its member."""
    return EtcdSettings(
        endpoints=tuple(MemberAddress.parse(each).client_url for each in addresses),
        prefix=PREFIX,
        ca_file=str(files.authority),
        cert_file=str(files.certificate),
        key_file=str(files.key),
        quota_bytes=QUOTA_BYTES,
    )


class EngineCluster:
    """Any member of `addresses` may answer; which one does not matter."""

    def __init__(self, files: MemberFiles, addresses: Sequence[str]) -> None:
        self._settings = msgspec.structs.replace(
            engine_settings(files, addresses), patience_s=_PATIENCE_S, attempt_s=_PATIENCE_S / 2
        )

    def members(self) -> list[EngineMember]:
        """By address. A majority has confirmed the list."""
        answer = self._call("MemberList", pb.MemberListRequest(linearizable=True), pb.MemberListResponse)
        return sorted(map(_member, answer.members), key=lambda member: member.address)

    def add_learner(self, address: MemberAddress) -> None:
        """Adding it twice does nothing."""
        if any(member.address == str(address) for member in self.members()):
            return
        request = pb.MemberAddRequest(peerURLs=[address.peer_url], isLearner=True)
        give_up_at_s = time.monotonic() + _SETTLE_S
        while True:
            try:
                self._call("MemberAdd", request, pb.MemberAddResponse)
            except NotSettled:
                if time.monotonic() > give_up_at_s:
                    raise
                time.sleep(_SETTLE_PAUSE_S)
            except HaFailure as error:
                if "Peer URLs already exists" not in str(
                    error
                ):  # an earlier try of the same call was applied
                    raise
                return
            else:
                return

    def promote(self, member_id: int) -> bool:
        """Gives a learner its vote. False: it has not caught up yet."""
        try:
            self._call("MemberPromote", pb.MemberPromoteRequest(ID=member_id), pb.MemberPromoteResponse)
        except HaFailure as error:
            if "in sync with leader" in str(error):
                return False
            raise
        return True

    def remove(self, member_id: int) -> None:
        """Removing it twice does nothing."""
        if any(member.id == member_id for member in self.members()):
            self._call("MemberRemove", pb.MemberRemoveRequest(ID=member_id), pb.MemberRemoveResponse)

    def state(self, address: str) -> MemberState:
        try:
            with self._to(address) as connection:
                answer = connection.call(_MAINTENANCE + "Status", pb.StatusRequest(), pb.StatusResponse)
        except EngineError as error:
            return MemberState(address=address, trouble=str(error))
        return MemberState(
            address=address,
            id=answer.header.member_id,
            version=answer.version,
            is_leader=answer.leader == answer.header.member_id,
            is_learner=answer.isLearner,
            db_bytes=answer.dbSize,
            used_bytes=answer.dbSizeInUse,
            alarms=tuple(answer.errors),
        )

    def defragment(self, address: str) -> None:
        """Returns unused space of one member to its disk. It stops answering meanwhile: one member at a time."""
        with self._to(address) as connection, _told():
            connection.call(
                _MAINTENANCE + "Defragment",
                pb.DefragmentRequest(),
                pb.DefragmentResponse,
                attempt_s=_DEFRAGMENT_S,
            )

    def compact(self) -> None:
        """Forgets old revisions of keys. Nobody reads them."""
        with self._to(*self._settings.endpoints) as connection, _told():
            now = connection.call("/etcdserverpb.KV/Range", pb.RangeRequest(key=b"\0"), pb.RangeResponse)
            request = pb.CompactionRequest(revision=now.header.revision, physical=True)
            try:
                connection.call(
                    "/etcdserverpb.KV/Compact", request, pb.CompactionResponse, attempt_s=_DEFRAGMENT_S
                )
            except EngineUnavailable as error:
                if "has been compacted" not in str(error):
                    raise

    def disarm(self) -> None:
        """Lets the engine accept writes again after it was full."""
        method = _MAINTENANCE + "Alarm"
        with self._to(*self._settings.endpoints) as connection, _told():
            raised = connection.call(method, pb.AlarmRequest(action=pb.AlarmRequest.GET), pb.AlarmResponse)
            for alarm in raised.alarms:
                if alarm.alarm == pb.NOSPACE:
                    request = pb.AlarmRequest(
                        action=pb.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=pb.NOSPACE
                    )
                    connection.call(method, request, pb.AlarmResponse)

    def _call(self, method: str, request: Any, answer_type: Any) -> Any:
        with self._to(*self._settings.endpoints) as connection, _told():
            return connection.call(_CLUSTER + method, request, answer_type)

    @contextlib.contextmanager
    def _to(self, *urls: str) -> Iterator[Connection]:
        urls = tuple(url if "://" in url else MemberAddress.parse(url).client_url for url in urls)
        connection = Connection(msgspec.structs.replace(self._settings, endpoints=urls))
        try:
            yield connection
        finally:
            connection.close()


def _member(listed: pb.Member) -> EngineMember:
    return EngineMember(
        id=listed.ID,
        address=_address(listed.peerURLs),
        is_learner=listed.isLearner,
        is_started=bool(listed.name),
    )


def _address(peer_urls: Sequence[str]) -> str:
    """The address that people write, whose port is one below that of the peers."""
    try:
        peer = parse_address(peer_urls[0].rpartition("//")[2])
    except (ValueError, IndexError):
        return ", ".join(peer_urls)
    return str(Address(host=peer.host, port=peer.port - 1))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except EngineRefused as error:
        if "unhealthy cluster" in str(error):
            raise NotSettled(_NOT_SETTLED) from error
        raise HaFailure(_action(str(error))) from error
    except EngineError as error:
        raise EngineSilent(f"the engine does not answer: {error}") from error


def _action(text: str) -> str:
    if "too many learner" in text:
        return "another member is joining. Start it, wait until it follows (dgpu ha status), then try again"
    return _NOT_SETTLED if "re-configuration failed" in text else text
