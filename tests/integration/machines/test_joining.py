"""The exchange of a token for a certificate, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from dgpu.agent.joining import JoinFailed, SchedulerUnreachable, join
from dgpu.entry.config import load_agent_config
from dgpu.entry.machines import JoinedNodes, MachineFailure, NoAnswer, invite, join_cluster, revoke
from dgpu.service.machines import joining
from dgpu.service.machines.authority import FOLDER, Authority
from dgpu.service.machines.joining import JoinDoor
from dgpu.service.machines.machines import Machines
from dgpu.wire.address import Address
from integration.machines.conftest import Place

pytestmark = pytest.mark.timeout(60)


async def test_a_token_is_exchanged_once(place: Place) -> None:
    token = invite(place.data_dir, ("n1",), 3_600)
    joined = await place.join(token=token, into="first")
    assert (joined.certificate.names.nodes, joined.grpc_port) == (frozenset({"n1"}), place.port)
    with capture_logs() as logs, pytest.raises(JoinFailed, match="used before"):
        await place.join(token=token, into="second")
    assert [log["reason"] for log in logs if log["event"] == "join_refused"] == [
        "the join token was used before"
    ]
    assert token.secret not in str(logs)


async def test_the_first_of_several_schedulers_that_answers_lets_a_machine_join(
    place: Place, tmp_path: Path
) -> None:
    token = invite(place.data_dir, ("n1",), 3_600)
    config = load_agent_config(None, {"DGPU__AGENT__ID": "n1"})

    def join_by(server: str) -> JoinedNodes:
        return join_cluster(config, server, str(token), None, tmp_path / "tls")

    with pytest.raises(NoAnswer, match=r"127.0.0.1:1 cannot be reached.*\n127.0.0.1:2 cannot be reached"):
        await asyncio.to_thread(join_by, "127.0.0.1:1,127.0.0.1:2")
    joined = await asyncio.to_thread(join_by, f"127.0.0.1:1, 127.0.0.1:{place.join_port}")
    assert joined.nodes == ("n1",)
    assert joined.schedulers == (f"127.0.0.1:{place.port}", f"127.0.0.1:{place.port}")
    with pytest.raises(MachineFailure, match="Expected host:port, got 'b'"):
        join_by("127.0.0.1:1,b")


async def test_a_join_survives_the_loss_of_its_answer(place: Place) -> None:
    """The token is used up, and the machine has no certificate yet: it asks again with the same key."""
    token = invite(place.data_dir, ("n1",), 3_600)
    joined = await place.join(token=token, into="n1")
    directory = place.data_dir.parent / "machines" / "n1"
    (directory / "joining.pem").write_bytes(joined.certificate.key_pem)
    (directory / "agent.pem").unlink()
    again = await place.join(token=token, into="n1")
    assert again.certificate.names == joined.certificate.names


async def test_a_revoked_or_expired_token_is_refused(place: Place) -> None:
    revoked, expired = invite(place.data_dir, ("n1",), 3_600), invite(place.data_dir, ("n2",), 60)
    revoke(place.data_dir, "n1")
    place.ahead_s = 61
    for token, why in ((revoked, "revoked"), (expired, "expired")):
        with pytest.raises(JoinFailed, match=why):
            await place.join(token=token, into="x")


async def test_a_token_outlives_a_restart_of_the_scheduler(place: Place, tmp_path: Path) -> None:
    token = invite(place.data_dir, ("n1",), 3_600)
    door = JoinDoor(Machines(place.data_dir, lifetime_s=60), place.data_dir, grpc_port=1)
    place.join_port = await door.start(Address(host="127.0.0.1", port=0))
    joined = await place.join(token=token, into="n1")
    await door.stop()
    assert joined.certificate.names.nodes == {"n1"}


async def test_a_machine_sends_nothing_to_a_scheduler_with_another_fingerprint(
    place: Place, other_authority: Authority
) -> None:
    token = invite(place.data_dir, ("n1",), 3_600)
    mistaken = msgspec.structs.replace(token, fingerprint=other_authority.fingerprint)
    with pytest.raises(JoinFailed, match=r"not the scheduler.*Nothing was sent"):
        await place.join(token=mistaken, into="n1")
    assert (await place.join(token=token, into="n1")).certificate.names.nodes == {"n1"}


async def test_a_machine_sends_nothing_to_a_thief_that_shows_the_right_authority(place: Place) -> None:
    """The certificate of the authority is public. A scheduler has to prove that it holds a certificate of it."""
    thief = await place.certificate("n9")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = place.data_dir / "thief.pem"
    pair.write_bytes(thief.key_pem + thief.certificate_pem)
    context.load_cert_chain(pair)
    heard: list[bytes] = []

    async def steal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(msgspec.json.encode({"authority": thief.authority_pem.decode()}) + b"\n")
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(steal, "127.0.0.1", 0, ssl=context)
    place.join_port = server.sockets[0].getsockname()[1]
    with pytest.raises(JoinFailed, match=r"not a scheduler's.*Nothing was sent"):
        await place.join("n1")
    server.close()
    while not heard:  # noqa: ASYNC110 - the other end of the connection notices the close
        await asyncio.sleep(0.01)
    assert heard == [b""]


async def test_another_service_at_the_address_is_reported(place: Place) -> None:
    token = invite(place.data_dir, ("n1",), 3_600)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(SchedulerUnreachable, match="cannot be reached"):
        await asyncio.to_thread(join, Address(host="127.0.0.1", port=port), token, place.data_dir / "x")


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"rubbish\n", b'{"join_id": 1}\n', b"x" * 200_000])
async def test_rubbish_gets_a_short_answer_or_none_and_the_door_stays_open(place: Place, line: bytes) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", place.join_port, ssl=context)
    await reader.readline()
    writer.write(line)
    answer = await reader.read()
    writer.close()
    assert answer in {b"", msgspec.json.encode(_unreadable()) + b"\n"}
    assert await place.certificate("n1")


async def test_silent_connections_do_not_keep_machines_out_for_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "MAX_AT_ONCE", 2)
    monkeypatch.setattr(joining, "EXCHANGE_S", 0.5)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    silent = [await asyncio.open_connection("127.0.0.1", place.join_port, ssl=context) for _ in range(3)]
    for reader, _ in silent:
        await reader.read()
    assert await place.certificate("n1")
    for _, writer in silent:
        writer.close()


async def test_the_keys_of_a_scheduler_are_private(place: Place) -> None:
    await place.certificate("n1")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place.data_dir / FOLDER).iterdir()}
    assert modes == {"authority.pem": 0o600, "machines.sqlite": 0o600, "scheduler.pem": 0o600}


def _unreadable() -> joining.JoinAnswer:
    return joining.JoinAnswer(error="the request cannot be read")
