"""Real processes to measure: a scheduler, an agent host, and a lean client. Configured as a user gets them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _load import TOKEN_VARIABLE

from dgpu.entry.keepers import end_keepers

LOADER = Path(__file__).with_name("_load.py")
# An installed package is compiled. Where sources are used as they are, the first start compiles them, if it may.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Server:
    """A scheduler process, and one connection to it."""

    def __init__(self, folder: Path, rules: str = "", journal: str = "file") -> None:
        self.folder = folder
        self.http_port, self.grpc_port = free_port(), free_port()
        self._config = folder / "scheduler.yaml"
        self._config.write_text(
            f"server: {{http_address: '127.0.0.1:{self.http_port}', grpc_address: '127.0.0.1:{self.grpc_port}'}}\n"
            f"storage: {{snapshot_dir: {folder}/state, journal: {journal}}}\n{rules}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=120)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = start("scheduler", self._config)

    def wait_until_ready(self) -> None:
        self._wait(lambda: self.get("/ready?role=master").get("ready"), "the scheduler to be ready")

    def wait_for_nodes(self, number: int) -> None:
        def all_there() -> bool:
            nodes = self.get("/api/v1/nodes")["nodes"]
            return len(nodes) == number and all(node["status"] == "ready" for node in nodes)

        self._wait(all_there, f"{number} nodes", seconds=60 + number * 0.06)

    def kill(self) -> None:
        """With -9, as a power switch for one process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(120)

    def load(self, kind: str, number: int, command: str = "", token: str = "") -> dict[str, float]:
        """Submits from a process of its own; its result is one line of JSON."""
        arguments = [sys.executable, str(LOADER), kind, str(self.http_port), str(number), command]
        env = {**os.environ, TOKEN_VARIABLE: token}
        done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, timeout=600, env=env)
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def get(self, path: str) -> dict[str, Any]:
        try:
            self._connection.request("GET", path)
            return dict(json.loads(self._connection.getresponse().read()))
        except http.client.RemoteDisconnected:  # it was idle for long
            self._connection.close()
            self._connection.request("GET", path)
            return dict(json.loads(self._connection.getresponse().read()))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return dict(json.loads(self._connection.getresponse().read()))

    def total(self, status: str) -> int:
        return int(self.get(f"/api/v1/tasks?status={status}&limit=1")["total"])

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _wait(self, condition: Any, what: str, seconds: float = 60) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while (asked_at := time.monotonic()) < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if condition():
                    return
            self._connection.close()
            if self._process.poll() is not None:
                raise SystemExit(
                    f"the scheduler ended: {(self.folder / 'scheduler.log').read_text()[-2_000:]}"
                )
            time.sleep(max(0.02, time.monotonic() - asked_at))  # a large answer is not asked for all the time
        raise SystemExit(f"waited in vain for {what}")


@contextlib.contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Beside the working directory: the temporary one may be memory, where an fsync costs nothing."""
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scheduler(rules: str = "", journal: str = "file") -> Iterator[Server]:
    with folder_on_disk() as folder:
        server = Server(folder, rules, journal)
        server.start()
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def agent_host(
    server: Server, *, nodes: int, cards: str = "8xV100", method: str = "process"
) -> Iterator[subprocess.Popen[bytes]]:
    """One process for all simulated nodes; returns when every one of them is registered."""
    config = server.folder / "agent.yaml"
    config.write_text(
        f"agent: {{id: bench, simulated_nodes: {nodes}}}\n"
        f"scheduler: {{master_address: '127.0.0.1:{server.grpc_port}'}}\n"
        f"gpu: {{detection_method: simulated, simulated: {cards}}}\n"
        f"executor: {{execution_method: {method}, work_dir: {server.folder}/agent}}\n"
    )
    process = start("agent", config)
    try:
        server.wait_for_nodes(nodes)
        yield process
    finally:
        process.terminate()
        process.wait(60)
        end_keepers(server.folder / "agent")


def start(service: str, config: Path) -> subprocess.Popen[bytes]:
    with config.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dgpu", service, "--config", str(config)],
            stdout=log,
            stderr=log,
            env=ENVIRONMENT,
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
