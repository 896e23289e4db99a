"""A worker that runs as another Unix user."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.core.model.task import WorkerSetup
from dgpu.wire.proto import agent_pb2 as pb
from integration.agent.scheduling import ScriptedScheduler, start, until
from integration.agent.test_agent_workers import agent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root runs tasks as other users"),
    pytest.mark.skipif(shutil.which("python3", path="/usr/bin") is None, reason="needs /usr/bin/python3"),
]

# A worker without packages: the Python of the tests may be in a directory that other users cannot enter.
WORKER = """#!/usr/bin/python3
import os, socket
path = os.environ["DGPU_WORKER_SOCKET"]
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
link, _ = server.accept()
for body in (b"\\x83\\xa1t\\xa5hello\\xa8protocol\\x01\\xa3pid\\x05", b"\\x81\\xa1t\\xa5ready"):
    link.sendall(len(body).to_bytes(4, "big") + body)
link.recv(1)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Other users can enter it, unlike the directories of pytest."""
    found = Path(tempfile.mkdtemp(prefix="dgpu-users-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


def program(place: Path, text: str) -> str:
    path = place / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def as_user(place: Path, text: str) -> pb.Start:
    setup = WorkerSetup(app_id="app", python=program(place, text))
    order = start(7, "unused", worker=setup)
    order.account.CopyFrom(pb.Account(tenant="t1", user="70000-70009"))
    return order


async def test_its_socket_is_in_a_directory_of_its_user(place: Path) -> None:
    async with (
        ScriptedScheduler() as scheduler,
        agent(place / "state", scheduler, work_dir=place / "tasks"),
    ):
        await scheduler.order(as_user(place, WORKER))
        await until(lambda: 7 in scheduler.workers and scheduler.workers[7].ready)
        found = (place / "tasks" / ".workers" / "7").stat()
        assert 70_000 <= found.st_uid <= 70_009
        assert stat.S_IMODE(found.st_mode) == 0o700
        await scheduler.order(stops=(7,))
        await until(lambda: scheduler.finished.get(7))
        assert not (place / "tasks" / ".workers").exists()


async def test_a_socket_of_another_user_in_its_place_is_refused(place: Path) -> None:
    """The user of a worker could link the socket of another tenant's worker there."""
    foreign = WORKER.replace('os.environ["DGPU_WORKER_SOCKET"]', f'"{place}/foreign"')
    linking = f"#!/bin/sh\nln -s {place}/foreign $DGPU_WORKER_SOCKET; exec sleep 1000\n"
    script = place / "foreign.py"
    script.write_text(foreign)
    async with (
        ScriptedScheduler() as scheduler,
        agent(place / "state", scheduler, work_dir=place / "tasks"),
    ):
        await scheduler.order(start(8, f"exec /usr/bin/python3 {script}"))
        await until((place / "foreign").exists)
        await scheduler.order(as_user(place, linking))
        (end,) = await until(lambda: scheduler.finished.get(7))
        assert "its socket belongs to user 0, not to user 7000" in end.error
