"""Real etcd clusters on loopback, and a proxy that loses answers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from dgpu.entry.chaos.ports import free_port
from dgpu.journal.etcd.settings import EtcdSettings

DEADLINE_S = 60.0


def etcd_binary() -> str:
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("etcd is not installed (apt-get install etcd-server)")
    return found


class Member:
    def __init__(self, name: str, directory: Path, scheme: str) -> None:
        self.name = name
        self.directory = directory
        self.client_port, self.peer_port, self.metrics_port = (free_port() for _ in range(3))
        self.url = f"{scheme}://127.0.0.1:{self.client_port}"
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"
        self.process: subprocess.Popen[bytes] | None = None


class EtcdCluster:
    """One or three members. Use it in a `with` statement."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int = 1,
        tls: dict[str, Path] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self._binary = etcd_binary()
        self._directory = directory
        self._tls = tls
        self._flags = flags
        scheme = "https" if tls else "http"
        self.members = [Member(f"m{number}", directory / f"m{number}", scheme) for number in range(members)]

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for number in range(len(self.members)):
                self.start(number)
            self.wait_healthy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def settings(self, **changes: Any) -> EtcdSettings:
        fields: dict[str, Any] = {"endpoints": self.endpoints, "prefix": "test/"} | changes
        if self._tls:
            fields = {
                "ca_file": str(self._tls["ca"]),
                "cert_file": str(self._tls["cert"]),
                "key_file": str(self._tls["key"]),
            } | fields
        return EtcdSettings(**fields)

    def start(self, number: int) -> None:
        member = self.members[number]
        peers = ",".join(f"{one.name}={one.peer_url}" for one in self.members)
        command = [
            self._binary,
            f"--name={member.name}",
            f"--data-dir={member.directory}",
            f"--listen-client-urls={member.url}",
            f"--advertise-client-urls={member.url}",
            f"--listen-peer-urls={member.peer_url}",
            f"--initial-advertise-peer-urls={member.peer_url}",
            f"--listen-metrics-urls=http://127.0.0.1:{member.metrics_port}",
            f"--initial-cluster={peers}",
            "--initial-cluster-state=new",
            "--logger=zap",
            *self._flags,
        ]
        if self._tls:
            command += [
                f"--cert-file={self._tls['cert']}",
                f"--key-file={self._tls['key']}",
                f"--trusted-ca-file={self._tls['ca']}",
                "--client-cert-auth",
            ]
        with (self._directory / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_healthy(self, *numbers: int) -> None:
        """Until these members, or all, take part in a majority."""
        for number in numbers or range(len(self.members)):
            member = self.members[number]
            wait_until(lambda member=member: self._is_healthy(member), f"{member.name} is not healthy")

    def kill(self, *numbers: int) -> None:
        for number in numbers or range(len(self.members)):
            process = self.members[number].process
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)  # a stopped process would stay
                process.kill()
                process.wait()
                self.members[number].process = None

    def pause(self, *numbers: int) -> None:
        self._signal(signal.SIGSTOP, numbers)

    def resume(self, *numbers: int) -> None:
        self._signal(signal.SIGCONT, numbers)

    def leader(self) -> int:
        """The number of the member that leads."""
        for number in range(len(self.members)):
            answer = self.api("/v3/maintenance/status", {}, number=number)
            if answer["leader"] == answer["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")

    def api(self, path: str, body: dict[str, Any], *, number: int = 0, token: str = "") -> Any:
        """A call over etcd's JSON gateway, for the parts of its API that dgpu does not use."""
        request = urllib.request.Request(self.members[number].url + path, json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=self._context()) as answer:
            return json.loads(answer.read())

    def add_user(self, user: str, password: str) -> None:
        """Enables authentication: root, and a user that may use the prefix `test/`."""
        key, end = "dGVzdC8=", "dGVzdDA="  # test/ and test0
        for name, secret in (("root", "root"), (user, password)):
            self.api("/v3/auth/user/add", {"name": name, "password": secret})
            self.api("/v3/auth/role/add", {"name": name})
            self.api("/v3/auth/user/grant", {"user": name, "role": name})
        self.api(
            "/v3/auth/role/grant",
            {"name": user, "perm": {"permType": "READWRITE", "key": key, "range_end": end}},
        )
        self.api("/v3/auth/enable", {})

    def close(self) -> None:
        self.kill()

    def _signal(self, signal_number: int, numbers: tuple[int, ...]) -> None:
        for number in numbers or range(len(self.members)):
            process = self.members[number].process
            assert process is not None
            os.kill(process.pid, signal_number)

    def _is_healthy(self, member: Member) -> bool:
        assert member.process is not None
        if member.process.poll() is not None:
            log = (self._directory / f"{member.name}.log").read_text()[-2_000:]
            raise AssertionError(f"{member.name} ended with {member.process.returncode}: {log}")
        try:
            address = f"http://127.0.0.1:{member.metrics_port}/health"
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.loads(answer.read())["health"] == "true"
        except (OSError, urllib.error.URLError):
            return False

    def _context(self) -> ssl.SSLContext | None:
        if not self._tls:
            return None
        context = ssl.create_default_context(cafile=str(self._tls["ca"]))
        context.load_cert_chain(self._tls["cert"], self._tls["key"])
        return context


class LossyProxy:
    """A TCP proxy in front of one member. While `loses_answers`, requests arrive and answers do not."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.loses_answers = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """Breaks the connections that lost bytes, and forwards again."""
        self.loses_answers = False
        self.cut()

    def cut(self) -> None:
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._sockets += [client, server]
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, is_answer), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if not (is_answer and self.loses_answers):
                    sink.sendall(content)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def wait_until(condition: Any, otherwise: str) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, otherwise
        time.sleep(0.02)
