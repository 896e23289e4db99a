"""Callers without a valid certificate of this cluster are refused, and a revocation ends what is open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from typing import Any

import grpc
import pytest

from dgpu.agent.certificate import new_key, read_certificate, request_for
from dgpu.agent.channel import open_plain, open_tls
from dgpu.agent.stream import MainStream
from dgpu.core.model.ids import NodeId
from dgpu.entry.machines import revoke
from dgpu.service.grpc.server import SERVICE
from dgpu.service.machines.authority import Authority
from dgpu.wire.machines import SCHEDULER_NAME
from dgpu.wire.proto import agent_pb2 as pb
from integration.machines.conftest import LIFETIME_S, Place, ended, forged
from unit.service.cluster import register

pytestmark = pytest.mark.timeout(60)

DENIED = grpc.StatusCode.PERMISSION_DENIED


async def refused(call: Any) -> grpc.StatusCode:
    return (await answered(call))[0]


async def answered(call: Any) -> tuple[grpc.StatusCode, str]:
    """The refusal may come before the first message has left."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(register("n1"))
    return await ended(call)


async def test_the_certificate_of_another_cluster_ends_in_the_handshake(
    place: Place, other_authority: Authority
) -> None:
    stranger = forged(other_authority, "n1", trusts=place.machines.authority.certificate_pem)
    assert await refused(place.call(stranger)) is grpc.StatusCode.UNAVAILABLE


async def test_an_expired_certificate_ends_in_the_handshake(place: Place) -> None:
    expired = forged(place.machines.authority, "n1", now_s=time.time() - 7_200)
    assert await refused(place.call(expired)) is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_without_a_certificate_or_without_tls_is_refused(place: Place) -> None:
    credentials = grpc.ssl_channel_credentials(place.machines.authority.certificate_pem)
    options = [("grpc.ssl_target_name_override", SCHEDULER_NAME)]
    nameless = grpc.aio.secure_channel(f"127.0.0.1:{place.port}", credentials, options=options)
    assert await refused(place.call_on(nameless)) is grpc.StatusCode.UNAVAILABLE
    assert await refused(place.call_on(open_plain(f"127.0.0.1:{place.port}"))) is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_an_unknown_join_is_refused(place: Place) -> None:
    """After a restore of an older state, a machine that joined later has to join again."""
    call = place.call(forged(place.machines.authority, "n1"))
    assert await answered(call) == (DENIED, "the certificate comes from a join that is not known here")


async def test_the_schedulers_own_certificate_does_not_make_an_agent(place: Place) -> None:
    pair = place.machines.certificate.current()
    credentials = grpc.ssl_channel_credentials(
        place.machines.authority.certificate_pem, pair.key_pem, pair.certificate_pem
    )
    options = [("grpc.ssl_target_name_override", SCHEDULER_NAME)]
    channel = grpc.aio.secure_channel(f"127.0.0.1:{place.port}", credentials, options=options)
    assert await refused(place.call_on(channel)) is grpc.StatusCode.UNAVAILABLE


async def test_an_agent_does_not_talk_to_a_scheduler_of_another_authority(
    place: Place, other_authority: Authority
) -> None:
    mine = forged(other_authority, "n1")
    assert await refused(place.call(mine)) is grpc.StatusCode.UNAVAILABLE


async def test_an_agent_logs_why_it_does_not_trust_a_scheduler(
    place: Place, other_authority: Authority
) -> None:
    mine = forged(other_authority, "n1")
    reasons: list[str] = []
    stream = MainStream(
        f"127.0.0.1:{place.port}",
        open_channel=lambda address: open_tls(address, mine),
        on_open=lambda: reasons.append("opened"),
        on_message=lambda _: None,
        on_written=lambda: None,
        on_end=reasons.append,
    )
    while not reasons:  # noqa: ASYNC110 - the stream ends by itself
        await asyncio.sleep(0.01)
    stream.close()
    assert f"127.0.0.1:{place.port} cannot be reached" in reasons[0]
    assert "CERTIFICATE" in reasons[0] or "BAD_SIGNATURE" in reasons[0]


async def test_an_agents_certificate_does_not_make_a_scheduler(place: Place) -> None:
    """A task that stole its agent's key must not be able to receive the tasks of other nodes."""
    thief = await place.certificate("n2")
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials(
        [(thief.key_pem, thief.certificate_pem)], thief.authority_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        channel = open_tls(f"127.0.0.1:{port}", await place.certificate("n1"))
        assert await refused(place.call_on(channel)) is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(0)


async def test_a_revocation_ends_open_streams_and_refuses_new_ones(place: Place) -> None:
    bad, good = await place.certificate("n1"), await place.certificate("n2")
    agent = await place.connected(bad, "n1")
    output = place.call(bad, "Output")
    await output.write(pb.FromAgentOutput(hello=pb.OutputHello(node_id="n1", session_id="s")))
    await output.read()
    other = await place.connected(good, "n2")
    revoke(place.data_dir, "n1")
    reason = "the certificate of node n1 is revoked"
    assert await ended(agent) == (DENIED, reason)
    assert await ended(output) == (DENIED, reason)
    assert await answered(place.call(bad)) == (DENIED, reason)
    assert not place.runtime.node_contact(NodeId("n1")).connected
    assert place.runtime.node_contact(NodeId("n2")).connected
    assert not other.done()


async def test_a_revoked_machine_may_join_again_with_a_new_token(place: Place) -> None:
    await place.certificate("n1")
    revoke(place.data_dir, "n1")
    await place.connected(await place.certificate("n1"), "n1")
    assert place.runtime.node_contact(NodeId("n1")).connected


async def test_streams_end_when_the_certificate_was_not_renewed(place: Place) -> None:
    agent = await place.connected(await place.certificate("n1"), "n1")
    place.ahead_s = LIFETIME_S
    assert await ended(agent) == (DENIED, "the certificate of node n1 has expired")


async def renewed(place: Place, certificate: Any, key_pem: bytes) -> Any:
    channel = open_tls(f"127.0.0.1:{place.port}", certificate)
    place.channels.append(channel)
    method = channel.unary_unary(
        f"/{SERVICE}/Renew",
        request_serializer=pb.RenewRequest.SerializeToString,
        response_deserializer=pb.Renewed.FromString,
    )
    answer = await method(pb.RenewRequest(csr=request_for(key_pem)))
    return read_certificate(key_pem, answer.certificate, certificate.authority_pem)


async def test_a_renewal_keeps_the_names_and_the_open_streams(place: Place) -> None:
    first = await place.certificate("n1")
    agent = await place.connected(first, "n1")
    neighbour = await place.connected(await place.certificate("n2"), "n2", gpus=0)
    place.ahead_s = LIFETIME_S - 10
    second = await renewed(place, first, new_key())
    assert (second.names, second.key_pem != first.key_pem) == (first.names, True)
    place.ahead_s = LIFETIME_S + 10  # the first certificate has expired, the second has not
    assert (await ended(neighbour))[0] is DENIED  # it did not renew: the scheduler has looked
    await place.running_task(agent)
    assert not agent.done()


async def test_a_revoked_machine_cannot_renew(place: Place) -> None:
    certificate = await place.certificate("n1")
    revoke(place.data_dir, "n1")
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await renewed(place, certificate, new_key())
    assert refusal.value.code() is DENIED


def shown_at(port: int) -> bytes:
    """The certificate of the server, as a client without one of its own sees it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain) as connection:
        return connection.getpeercert(binary_form=True) or b""


async def test_the_scheduler_shows_a_renewed_certificate_without_a_restart(place: Place) -> None:
    agent = await place.connected(await place.certificate("n1"), "n1")
    before = [await asyncio.to_thread(shown_at, place.port) for _ in range(2)]
    place.ahead_s = LIFETIME_S * 0.7
    after = await asyncio.to_thread(shown_at, place.port)
    assert (before[0] == before[1], before[0] == after) == (True, False)
    assert ssl.DER_cert_to_PEM_cert(after).encode() == place.machines.certificate.current().certificate_pem
    await place.running_task(agent)
