"""Refusals on the agents' port are in the audit log, with the node of the certificate and the subject."""

from __future__ import annotations

from typing import Any

import pytest

from dgpu.wire.proto import agent_pb2 as pb
from integration.machines.conftest import Place, ended, forged
from integration.machines.test_own_node_only import files_hello, output_hello
from unit.service.cluster import register, reports

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("method", "hello"), [("Connect", register), ("Output", output_hello), ("Files", files_hello)]
)
async def test_a_call_for_another_node_is_recorded(place: Place, method: str, hello: Any) -> None:
    intruder = place.call(await place.certificate("n2"), method)
    await intruder.write(hello("n1"))
    await ended(intruder)
    entry = await place.refusal("not_your_node")
    assert (entry.action, entry.user, entry.subject) == ("agent.connect", "n2", "n1")
    assert (entry.role, entry.source, entry.status) == ("agent", "certificate", 403)
    assert entry.origin.startswith("127.0.0.1")


async def test_a_certificate_that_is_refused_is_recorded(place: Place) -> None:
    intruder = place.call(forged(place.machines.authority, "n1"))
    await ended(intruder)
    entry = await place.refusal("certificate_refused")
    assert (entry.action, entry.source, entry.status) == ("agent.connect", "certificate", 403)


async def test_a_report_on_another_nodes_lease_is_recorded(place: Place) -> None:
    victim = await place.connected(await place.certificate("n1"), "n1")
    _, lease_id = await place.running_task(victim)
    intruder = await place.connected(await place.certificate("n2"), "n2")
    await intruder.write(reports(1, finished=(lease_id,)))
    entry = await place.refusal("foreign_lease")
    assert (entry.action, entry.user, entry.subject) == ("agent.report", "n2", f"lease {lease_id}")


async def test_output_for_another_nodes_lease_is_recorded(place: Place) -> None:
    victim = await place.connected(await place.certificate("n1"), "n1")
    task_id, lease_id = await place.running_task(victim)
    certificate = await place.certificate("n2")
    await place.connected(certificate, "n2")
    intruder = place.call(certificate, "Output")
    await intruder.write(output_hello("n2"))
    await intruder.read()
    forged_chunk = pb.OutputChunk(lease_id=lease_id, task_id=task_id, attempt=1, data=b"forged", last=True)
    await intruder.write(pb.FromAgentOutput(chunk=forged_chunk))
    entry = await place.refusal("foreign_lease")
    assert (entry.action, entry.user, entry.subject) == ("agent.output", "n2", f"lease {lease_id}")
