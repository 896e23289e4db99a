"""Refusals on the agents' port are in the audit log, with the node of the certificate and the subject."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from dgpu.entry.machines import invite, revoke
from dgpu.service.machines.authority import Authority
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


async def test_a_refused_handshake_is_recorded_with_its_origin(
    place: Place, other_authority: Authority
) -> None:
    """A library refuses it without a word. The attempt of a stranger must not stay unseen."""
    stranger = forged(other_authority, "n1", trusts=place.machines.authority.certificate_pem)
    await ended(place.call(stranger))
    entry = await place.refusal("tls_refused")
    assert (entry.action, entry.user, entry.origin) == ("agent.connect", "", "127.0.0.1")
    assert (entry.source, entry.status) == ("certificate", 403)


async def test_an_expired_certificate_is_recorded_and_one_in_date_is_not(place: Place) -> None:
    good = place.call(await place.certificate("n2"))
    await good.write(register("n2"))
    await good.read()
    good.cancel()
    await place.channels[0].close()
    expired = forged(place.machines.authority, "n1", now_s=time.time() - 7_200)
    await ended(place.call(expired))
    entry = await place.refusal("tls_refused")
    assert (entry.count, entry.code) == (1, "tls_refused")  # `refusal` finds exactly one


async def test_commands_of_the_authority_are_recorded_once(place: Place) -> None:
    """They write files of the scheduler, on its own machine."""
    invite(place.data_dir, ("n1", "n2"), 3_600)
    revoke(place.data_dir, "n1")
    found = await place.recorded("ca.init", "ca.token", "ca.revoke")
    assert [(entry.action, entry.subject) for entry in found] == [
        ("ca.init", f"authority {place.fingerprint[:16]}…"),
        ("ca.token", "n1 and 1 more"),
        ("ca.revoke", "n1 and 1 more"),
    ]
    assert {(entry.source, entry.origin, entry.code) for entry in found} == {
        ("uid", f"uid {os.getuid()}", "")
    }
