"""The agents' port with TLS in this process, on free ports, with machines that joined through real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dgpu.agent.certificate import Certificate, new_key, read_certificate, request_for
from dgpu.agent.channel import open_tls
from dgpu.agent.joining import Joined, join
from dgpu.core.events import Audited
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.ids import TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.entry.chaos.ports import free_port
from dgpu.entry.machines import invite, make_authority
from dgpu.journal.memory import MemoryJournal
from dgpu.service.agent_port import agent_port
from dgpu.service.audit.trail import audit_trail
from dgpu.service.content.store import ContentLimits, ContentStore
from dgpu.service.copies.wholeness import Wholeness
from dgpu.service.grpc.server import SERVICE
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.machines.authority import Authority, create_authority
from dgpu.service.machines.machines import Machines
from dgpu.service.node_streams import NodeStreams, node_streams
from dgpu.service.open_files import AgentConnections
from dgpu.service.options import MachineOptions, ServiceOptions
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.streams import OutputStreams
from dgpu.wire.address import Address
from dgpu.wire.machines import JoinToken, MachineNames
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import register, submit

ANSWERS = {
    "Connect": pb.FromScheduler,
    "Output": pb.FromSchedulerOutput,
    "Files": pb.FromSchedulerFiles,
    "Renew": pb.Renewed,
}
LIFETIME_S = 240  # less than certificates are backdated: those of a clock that was set forward are valid now


class Place:
    """A scheduler whose clock a test may set forward."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.ahead_s = 0.0
        self.fingerprint, _ = make_authority(data_dir)
        self.machines = Machines(data_dir, lifetime_s=LIFETIME_S, clock=lambda: time.time() + self.ahead_s)
        self.runtime: Runtime
        self.output: OutputStreams
        self.streams: NodeStreams
        self.port = 0
        self.join_port = 0
        self.channels: list[grpc.aio.Channel] = []
        self.audited: list[AuditEntry] = []  # in the journal
        self._has_audited = asyncio.Event()

    def note_audited(self, group: CommittedGroup) -> None:
        self.audited += [event.entry for event in group.events if isinstance(event, Audited)]
        self._has_audited.set()

    async def refusal(self, code: str) -> AuditEntry:
        """The entry of the audit log with this code, as soon as it is durable."""
        async with asyncio.timeout(30):
            while not (found := [entry for entry in self.audited if entry.code == code]):
                self._has_audited.clear()
                await self._has_audited.wait()
        (entry,) = found
        return entry

    async def recorded(self, *actions: str) -> list[AuditEntry]:
        """The entries of these actions, as soon as each has one."""
        async with asyncio.timeout(30):
            while not {entry.action for entry in self.audited} >= set(actions):
                self._has_audited.clear()
                await self._has_audited.wait()
        return [entry for entry in self.audited if entry.action in actions]

    async def join(self, *nodes: str, token: JoinToken | None = None, into: str = "") -> Joined:
        token = token or invite(self.data_dir, nodes, 3_600)
        server = Address(host="127.0.0.1", port=self.join_port)
        directory = self.data_dir.parent / "machines" / (into or "-".join(nodes))
        return await asyncio.to_thread(join, server, token, directory)

    async def certificate(self, *nodes: str) -> Certificate:
        return (await self.join(*nodes)).certificate

    def call(self, certificate: Certificate, method: str = "Connect") -> Any:
        return self.call_on(open_tls(f"127.0.0.1:{self.port}", certificate), method)

    def call_on(self, channel: grpc.aio.Channel, method: str = "Connect") -> Any:
        self.channels.append(channel)
        return channel.stream_stream(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ANSWERS[method].FromString,
        )()

    async def connected(self, certificate: Certificate, node: str, **values: Any) -> Any:
        call = self.call(certificate)
        await call.write(register(node, **values))
        assert (await call.read()).welcome.epoch == 1
        return call

    async def running_task(self, agent: Any) -> tuple[TaskId, int]:
        (submitted, *_) = await self.runtime.execute(submit())
        (start,) = (await agent.read()).orders.starts
        return submitted.first_id, start.lease_id

    async def status(self, task_id: TaskId) -> TaskStatus:
        return await self.runtime.read(lambda state: state.tasks[task_id].status)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call, after all that was sent on it."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return await call.code(), await call.details()


def forged(
    authority: Authority, *nodes: str, join_id: str = "f" * 16, now_s: float = 0, trusts: bytes = b""
) -> Certificate:
    """As a thief of an authority's key would make it. `trusts`: the authority of the scheduler that is called."""
    key = new_key()
    names = MachineNames(join_id=join_id, nodes=frozenset(nodes))
    issued = authority.issue_agent(request_for(key), names, now_s=int(now_s or time.time()), lifetime_s=3_600)
    made = read_certificate(key, issued.certificate_pem, authority.certificate_pem)
    return Certificate(
        key_pem=made.key_pem,
        certificate_pem=made.certificate_pem,
        authority_pem=trusts or made.authority_pem,
        names=made.names,
        begins_at_s=made.begins_at_s,
        expires_at_s=made.expires_at_s,
    )


@pytest.fixture
def other_authority(tmp_path: Path) -> Authority:
    return create_authority(tmp_path / "other", now_s=int(time.time()))[0]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path / "scheduler")
    journal = MemoryJournal()
    recovery = journal.recover()
    clock = Clock()
    scheduler = Scheduler(
        recovery.replayed(), last_index=recovery.index, rules=AgentRules(), started_at=clock.now_ms()
    )
    place.runtime = Runtime(scheduler, journal, clock)
    await place.runtime.start(Begin(settings=Settings()))
    place.output = OutputStreams(
        LogStore(tmp_path / "logs"), place.runtime, wholeness=Wholeness(tmp_path / "logs")
    )
    place.runtime.subscribe(place.note_audited)
    place.join_port = free_port()
    options = ServiceOptions(
        data_dir=place.data_dir,
        grpc=Address(host="127.0.0.1", port=0),
        machines=MachineOptions(join=Address(host="127.0.0.1", port=place.join_port)),
    )
    place.streams = node_streams(ContentStore(tmp_path / "content", ContentLimits()), is_shared=True)
    async with (
        audit_trail(place.runtime) as trail,
        agent_port(
            options, place.runtime, place.output, place.streams, AgentConnections(), place.machines, trail
        ) as place.port,
    ):
        yield place
        for channel in place.channels:
            await channel.close()
    await place.runtime.stop()
    await place.output.close()
