"""A scheduler with few open files, while another user of the machine floods both of its ports."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dgpu.wire.proto import agent_pb2 as pb

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
]
FILES = 256
PATIENCE_S = 120.0

PROGRAM = """
import resource, sys
from pathlib import Path
import msgspec, uvloop
from dgpu.service.options import ServiceOptions
from dgpu.wire.address import Address
from dgpu.service.server import serve

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
any_port = Address(host="127.0.0.1", port=0)
options = ServiceOptions(data_dir=Path(sys.argv[1]), http=any_port, grpc=any_port, segment_bytes=1 << 20)
uvloop.run(serve(options, lambda at: print(msgspec.json.encode(at).decode(), file=sys.stderr, flush=True)))
"""
FLOOD = """
import encodings.idna, os, socket, sys
os.setgid(65534); os.setuid(65534)
ports = [int(port) for port in sys.argv[1:]]
held = []
for number in range(1500):
    for port in ports:
        try:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        except OSError:
            pass
print("flooded", flush=True)
while True:  # those that were closed come again
    for place, client in enumerate(held):
        client.setblocking(False)
        try:
            gone = not client.recv(4096)
        except BlockingIOError:
            continue
        except OSError:
            gone = True
        if gone:
            port = ports[place % len(ports)]
            client.close()
            try:
                held[place] = socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                pass
"""


@contextlib.contextmanager
def scheduler(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data_dir), str(FILES)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith('{"http"'))
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def flood(*ports: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", FLOOD, *map(str, ports)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "flooded\n"
        yield
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", content, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def registers(port: int) -> bool:
    """As an agent does: dials again until it is welcomed."""
    deadline = time.monotonic() + PATIENCE_S
    register = pb.Register(node_id="n1", boot_id="b", session_id="s", cpus_milli=1_000, ram_mb=1_000)
    while time.monotonic() < deadline:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(
                "/dgpu.agent.v1.Agents/Connect",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=pb.FromScheduler.FromString,
            )
            try:
                for answer in call(iter([pb.FromAgent(register=register)]), timeout=5):
                    if answer.WhichOneof("body") == "welcome":
                        return True
            except grpc.RpcError:
                continue
    return False


def test_a_flood_of_another_user_takes_no_file_that_the_scheduler_needs(tmp_path) -> None:
    """The owner is served, the journal opens new segments, and an agent gets in."""
    with scheduler(tmp_path) as (process, at):
        http, agents = at["http"]["port"], at["grpc"]["port"]
        with flood(http, agents):
            batch = {"tasks": [{"command": ["x", "y" * 3_000]}] * 100}
            acknowledged = 0
            for _ in range(20):
                acknowledged += len(ask(http, "/api/v1/tasks/batch", batch)["task_ids"])
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < FILES - 32
            assert acknowledged == 2_000
            assert (
                len(list((tmp_path / "journal").glob("segment-*")))
                + len(list((tmp_path / "archive").glob("*")))
                > 3
            )
            assert registers(agents)
            ready = ask(http, "/ready")
            assert ready["ready"]
            assert ready["connections"]["http_shed"] + ready["connections"]["http_refused"] > 100
            assert ready["connections"]["agents_closed"] > 0
            assert ready["connections"]["files"] < ready["connections"]["files_max"] == FILES
        assert process.poll() is None
        assert ask(http, "/api/v1/tasks?limit=1")["total"] == 2_000


def test_the_soft_limit_is_raised_and_the_given_one_remembered(tmp_path) -> None:
    program = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard)); from dgpu import file_limit; "
        "file_limit.raise_file_limit(); file_limit.raise_file_limit(); "
        "print(file_limit.file_limit() == min(hard, 65536), file_limit.given_soft_limit())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "True 300\n"
