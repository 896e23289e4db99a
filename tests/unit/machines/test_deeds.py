"""Commands of `dgpu ca` wait in a file until the audit log has them."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import struct
from pathlib import Path

import pytest

from dgpu.entry.machines import invite, make_authority, revoke
from dgpu.service.grpc import handshakes
from dgpu.service.grpc.handshakes import Handshakes, closed_peer
from dgpu.service.machines import deeds
from dgpu.service.machines.deeds import Deed, take_over
from dgpu.service.machines.roster import Roster


async def test_a_deed_that_could_not_be_written_is_told_again_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deeds, "LOOK_SECONDS", 0)
    make_authority(tmp_path)
    invite(tmp_path, ("n1",), 60)
    revoke(tmp_path, "n1")
    told: list[str] = []
    is_over = asyncio.Event()

    async def record(deed: Deed) -> bool:
        told.append(deed.action)
        if len(told) == 4:
            is_over.set()
        return len(told) != 2  # the journal has no room once

    recording = asyncio.create_task(take_over(Roster(tmp_path), record))
    await asyncio.wait_for(is_over.wait(), 30)
    recording.cancel()
    assert told == ["ca.init", "ca.token", "ca.token", "ca.revoke"]


async def test_a_deed_that_cannot_be_deleted_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the journal must not get another entry each second."""
    monkeypatch.setattr(deeds, "LOOK_SECONDS", 0)
    make_authority(tmp_path)
    told: list[str] = []
    looks = 0
    is_over = asyncio.Event()

    class Full(Roster):
        def forget_deeds(self, until_id: int) -> None:
            nonlocal looks
            looks += 1
            if looks < 4:
                raise sqlite3.OperationalError("database or disk is full")
            super().forget_deeds(until_id)
            loop.call_soon_threadsafe(is_over.set)

    async def record(deed: Deed) -> bool:
        told.append(deed.action)
        return True

    loop = asyncio.get_running_loop()
    roster = Full(tmp_path)
    recording = asyncio.create_task(take_over(roster, record))
    await asyncio.wait_for(is_over.wait(), 30)
    recording.cancel()
    assert told == ["ca.init"]
    assert roster.deeds() == []


def test_an_authority_that_exists_is_no_new_deed(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_authority(tmp_path)
    assert [deed.action for deed in Roster(tmp_path).deeds()] == ["ca.init"]


def test_deeds_without_a_scheduler_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deeds, "MAX_DEEDS", 3)
    make_authority(tmp_path)
    for number in range(5):
        invite(tmp_path, (f"n{number}",), 60)
    assert [deed.subject for deed in Roster(tmp_path).deeds()] == ["n2", "n3", "n4"]


def message(host: str, port: int, received: int) -> bytes:
    """As the kernel reports a connection that was closed."""
    is_v4 = ":" not in host
    family = socket.AF_INET if is_v4 else socket.AF_INET6
    ends = bytes(16) + socket.inet_pton(family, host).ljust(16, b"\0")
    body = struct.pack("=BBBB", family, 7, 0, 0) + struct.pack("!HH", 9090, port) + ends
    body += bytes(72 - len(body))
    mark = struct.pack("=HHI", 8, 15, 0)  # an attribute of another kind
    figures = struct.pack("=HH", 4 + 136, 2) + bytes(128) + struct.pack("=Q", received)
    return bytes(16) + body + mark + figures


@pytest.mark.parametrize(
    ("host", "plain"), [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("fd00::7", "fd00::7")]
)
def test_the_kernels_report_of_a_closed_connection_is_read(host: str, plain: str) -> None:
    assert closed_peer(message(host, 4711, 517)) == ((plain, 4711), 517)


async def test_only_connections_that_sent_something_and_made_no_call_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "SETTLE_SECONDS", 0)
    failed: list[str] = []
    watch = Handshakes(failed.append)
    watch.start(9)
    try:
        watch.passed("ipv4:10.0.0.1:1000")
        watch.closed(message("10.0.0.1", 1000, 5_000))  # an agent
        watch.closed(message("10.0.0.2", 1000, 1))  # a health check
        watch.closed(message("10.0.0.3", 1000, 517))
        watch.closed(message("10.0.0.4", 1000, 517))
        watch.passed("ipv4:10.0.0.4:1000")  # its call was noticed after its end
        await asyncio.sleep(0.01)
        assert failed == ["10.0.0.3"]
    finally:
        watch.stop()
