"""Ports of tasks through `dgpu forward`: real programs, real connections."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from dgpu.entry.chaos.ports import free_port
from dgpu.wire.websocket import Decoder, Kind, accept_of, encode, new_key
from e2e.conftest import PATIENCE_SECONDS, Site, eventually

pytestmark = pytest.mark.slow

# Answers HTTP with its own name, and returns the messages of a WebSocket.
PROGRAM = """
import http.server, os, sys
from dgpu.wire.websocket import Decoder, Kind, accept_of, encode

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if "Upgrade" in self.headers:
            self.echo()
            return
        body = os.environ["DGPU_TASK_ID"].encode() * int(self.path[1:] or 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers["Sec-WebSocket-Key"].encode()).decode())
        self.end_headers()
        decoder = Decoder(expects_masks=True, max_bytes=1 << 20)
        while received := self.connection.recv(65536):
            for message in decoder.feed(received):
                self.connection.sendall(encode(message.kind, message.body, masked=False))
        self.close_connection = True

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["DGPU_PORT"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def place():
    place = Site()
    (place.home / "program.py").write_text(PROGRAM)
    place.up("--fake", "4xV100")
    yield place
    place.close()


def submit(place, *flags):
    name = place.submit(*flags, "--", sys.executable, str(place.home / "program.py"))
    place.started(name)
    return name


class Forward:
    """`dgpu forward` as a process. Without a port it waits for the end."""

    def __init__(self, place, *arguments, verb="forward", cwd=None):
        self.process = subprocess.Popen(
            place.command(verb, "-o", "json", *arguments),
            env=place.env,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        threading.Thread(target=self._listen, daemon=True).start()
        text = ""
        while not text.endswith("\n}\n"):
            line = self.process.stdout.readline()
            assert line, (text, self.said)
            text += line
        (self.forward,) = json.loads(text)["forwards"]
        self.local = self.forward["local_port"]

    def _listen(self):
        for line in self.process.stderr:
            self.said += line

    def get(self, path="/"):
        connection = http.client.HTTPConnection("127.0.0.1", self.local, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": "task-1.localhost"})
            return connection.getresponse().read().decode()

    def ends(self):
        return self.process.wait(PATIENCE_SECONDS)

    def says(self, text):
        eventually(lambda: text in self.said, f"{text!r} (said: {self.said!r})")


@contextlib.contextmanager
def forwarding(place, *arguments, **more):
    forward = Forward(place, *arguments, **more)
    try:
        yield forward
    finally:
        forward.process.kill()
        forward.process.wait()


def test_http_and_websocket_reach_the_task_and_its_end_ends_the_forward(place):
    port = free_port()
    name = submit(place, "--port", str(port))
    assert place.task(name)["ports"] == [port]
    with forwarding(place, name, str(port)) as forward:
        assert forward.local != port, "the task has it on this machine"
        assert forward.get() == name
        forward.says(f"http://{name}-{port}.localhost:")
        assert forward.get("/200000") == name * 200_000, "more than the windows of the channel"
        assert echo(forward.local, b"hello" * 2000) == b"hello" * 2000
        place.good("cancel", name)
        assert forward.ends() == 0
        forward.says(f"{name} has ended (cancelled)")
    ended = place.dgpu("forward", name, str(port))
    assert ended.code == 6, ended
    assert f"{name} has ended (cancelled)" in ended.err


def echo(port, message):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as link:
        key = new_key()
        link.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key.encode() + b"\r\n\r\n"
        )
        received = b""
        while b"\r\n\r\n" not in received:
            received += link.recv(65_536)
        head, _, rest = received.partition(b"\r\n\r\n")
        assert accept_of(key.encode()) in head
        link.sendall(encode(Kind.BINARY, message, masked=True))
        decoder = Decoder(expects_masks=False, max_bytes=1 << 20)
        messages = decoder.feed(rest)
        while not messages:
            messages = decoder.feed(link.recv(65_536))
        return messages[0].body


def test_two_tasks_with_the_same_port_and_processes_that_are_killed(place):
    """The mapping of ports outlives the agent, and forwards find the new scheduler."""
    port = free_port()
    names = [submit(place, "--port", str(port)) for _ in range(2)]
    local = free_port()
    with (
        forwarding(place, names[0], str(port)) as first,
        forwarding(place, names[1], f"{port}:{local}") as second,
    ):
        assert second.local == local
        assert [first.get(), second.get()] == names
        for role in ("agent", "scheduler"):
            pid = place.record[role]["pid"]
            os.kill(pid, signal.SIGKILL)
            eventually(
                lambda role=role, pid=pid: place.record.get(role, {}).get("pid", pid) != pid,
                f"another {role}",
            )
            assert [first.get(), second.get()] == names
        taken = place.dgpu("forward", names[1], f"{port}:{local}")
        assert taken.code == 1, taken
        assert f"Port {local} of this machine" in taken.err
        second.process.send_signal(signal.SIGINT)
        assert second.ends() == 0
        second.says(f"Reach it again: dgpu forward {names[1][5:]} {port}:{local}")
    place.good("cancel", *names)


def test_only_ports_of_the_task_can_be_reached(place):
    """The agent may reach much more than the task's owner."""
    name = place.submit("--", "sleep", "1000")
    place.started(name)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        with forwarding(place, name, str(port)) as forward, pytest.raises(ConnectionError):
            try:
                forward.get()
            finally:
                forward.says(f"port {port} of node")
                assert "belongs to another program" in forward.said
        foreign.settimeout(0)
        with pytest.raises(BlockingIOError):
            foreign.accept()
    closed = free_port()
    with forwarding(place, name, str(closed)) as forward, pytest.raises(ConnectionError):
        try:
            forward.get()
        finally:
            forward.says(f"nothing listens on port {closed}")
    for wrong in ("0", "65536", "80:", "a", "1:2:3"):
        refused = place.dgpu("forward", name, wrong)
        assert refused.code == 2, refused
    place.good("cancel", name)


def test_a_program_that_listens_later_and_without_port_is_waited_for(place):
    port = free_port()
    server = f"sleep 1; exec {sys.executable} -m http.server -b 127.0.0.1 {port}"
    name = place.submit("--", "sh", "-c", server)
    place.started(name)
    with forwarding(place, name, str(port)) as forward:
        assert re.search("Directory listing", forward.get())
    place.good("cancel", name)


# In place of the package: its options, its variable of the token, and an answer only to those who have it.
JUPYTERLAB = """
import http.server, os, sys
token = os.environ["JUPYTER_TOKEN"]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.endswith("token=" + token) else 403)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv[1:]).encode())

if __name__ == "__main__":
    assert token not in " ".join(sys.argv)
    port = next(word.removeprefix("--port=") for word in sys.argv if word.startswith("--port="))
    http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


def test_jupyter_prints_a_link_that_works_and_survives_ctrl_c(place):
    project = place.home / "notebooks"
    project.mkdir()
    (project / "jupyterlab.py").write_text(JUPYTERLAB)
    with forwarding(place, "-G", "1", "--", "--debug", verb="jupyter", cwd=project) as lab:
        host, path = re.fullmatch(r"http://([^/]+)(/lab\?token=.{32})", lab.forward["url"]).groups()
        assert re.fullmatch(rf"task-\d+\.localhost:{lab.local}", host)
        assert lab.get(path).endswith("--debug")
        task_id = host.partition(".")[0]
        lab.process.send_signal(signal.SIGINT)
        assert lab.ends() == 0
        lab.says(f"{task_id} continues")
    assert place.task(task_id)["name"] == "jupyter"
    place.good("cancel", task_id)


def test_without_jupyterlab_the_task_says_what_to_install(place):
    project = place.home / "without"
    project.mkdir()
    (project / "jupyterlab.py").write_text("raise ImportError('hidden')")
    answer = place.dgpu("jupyter", cwd=project)
    assert answer.code == 1
    assert "has ended (failed). Its output: dgpu logs task-" in answer.err
    (task_id,) = re.findall(r"dgpu logs (task-\d+)", answer.err)
    assert "python -m pip install jupyterlab" in place.good("logs", task_id).out
