"""An agent acts for the nodes of its certificate and for no other: on each stream, in each message."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from dgpu.core.model.ids import NodeId
from dgpu.core.model.task import TaskStatus
from dgpu.wire.proto import agent_pb2 as pb
from integration.machines.conftest import Place, ended
from unit.service.cluster import register, reports

pytestmark = pytest.mark.timeout(60)

DENIED = grpc.StatusCode.PERMISSION_DENIED


def output_hello(node: str) -> pb.FromAgentOutput:
    return pb.FromAgentOutput(hello=pb.OutputHello(node_id=node, session_id="s"))


def files_hello(node: str) -> pb.FromAgentFiles:
    return pb.FromAgentFiles(hello=pb.FilesHello(node_id=node, session_id="s"))


async def test_an_agent_registers_and_finishes_a_task_over_tls(place: Place) -> None:
    agent = await place.connected(await place.certificate("n1"), "n1")
    task_id, lease_id = await place.running_task(agent)
    await agent.write(reports(1, started=(lease_id,), finished=(lease_id,)))
    assert (await agent.read()).reports_ack.seq == 1
    assert await place.status(task_id) is TaskStatus.SUCCESS


async def test_one_machine_may_be_several_nodes(place: Place) -> None:
    certificate = await place.certificate("n1", "n2")
    for node in ("n1", "n2"):
        await place.connected(certificate, node)
    assert place.runtime.node_contact(NodeId("n2")).connected


async def test_another_nodes_registration_is_refused_and_its_own_stream_stays(place: Place) -> None:
    victim = await place.connected(await place.certificate("n1"), "n1")
    intruder = place.call(await place.certificate("n2"))
    with capture_logs() as logs:
        await intruder.write(register("n1", boot="boot-2"))
        assert await ended(intruder) == (DENIED, "the certificate does not name node 'n1'")
    refused = [log for log in logs if log["event"] == "stranger_refused"]
    assert [log["reason"] for log in refused] == ["the certificate does not name node 'n1'"]
    assert place.runtime.node_contact(NodeId("n1")).connected
    await place.running_task(victim)


@pytest.mark.parametrize(("method", "hello"), [("Output", output_hello), ("Files", files_hello)])
async def test_another_nodes_streams_beside_the_main_one_are_refused(
    place: Place, method: str, hello: Any
) -> None:
    """The session of the victim is known to the intruder here, and does not help."""
    await place.connected(await place.certificate("n1"), "n1")
    intruder = place.call(await place.certificate("n2"), method)
    await intruder.write(hello("n1"))
    assert await ended(intruder) == (DENIED, "the certificate does not name node 'n1'")


async def test_a_report_on_another_nodes_lease_changes_nothing_and_is_logged(place: Place) -> None:
    victim = await place.connected(await place.certificate("n1"), "n1")
    task_id, lease_id = await place.running_task(victim)
    await victim.write(reports(1, started=(lease_id,)))
    await victim.read()
    intruder = await place.connected(await place.certificate("n2"), "n2")
    with capture_logs() as logs:
        await intruder.write(reports(1, finished=(lease_id,)))
        assert (await intruder.read()).reports_ack.seq == 1
    assert await place.status(task_id) is TaskStatus.RUNNING
    (refused,) = [log for log in logs if log["event"] == "report_refused"]
    assert (refused["node"], refused["reason"]) == ("n2", f"lease {lease_id} belongs to node n1")


async def test_output_for_another_nodes_lease_is_refused(place: Place) -> None:
    victim = await place.connected(await place.certificate("n1"), "n1")
    task_id, lease_id = await place.running_task(victim)
    certificate = await place.certificate("n2")
    await place.connected(certificate, "n2")
    intruder = place.call(certificate, "Output")
    await intruder.write(output_hello("n2"))
    assert (await intruder.read()).credit.bytes
    forged = pb.OutputChunk(lease_id=lease_id, task_id=task_id, attempt=1, data=b"forged\n", last=True)
    await intruder.write(pb.FromAgentOutput(chunk=forged))
    assert (await intruder.read()).unwanted.lease_id == lease_id
    assert place.output.refused == 1


async def test_a_second_register_on_a_stream_cannot_change_the_node(place: Place) -> None:
    agent = await place.connected(await place.certificate("n1"), "n1")
    await agent.write(register("n2"))
    assert (await ended(agent))[0] is DENIED
