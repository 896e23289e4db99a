"""A throw-away cluster of real processes: one scheduler, several agents, each with its keeper and guard."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from dgpu.client import Client
from dgpu.client.errors import Unreachable
from dgpu.entry.chaos.ports import free_port
from dgpu.entry.keepers import end_keepers

_SCHEDULER = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}"}}
scheduler: {{snapshot_interval: 2, keep_finished_tasks: 100, keep_finished_seconds: 5, max_retry_delay_seconds: 2}}
quota: {{mode: borrow, unknown_tenants: create}}
agent: {{heartbeat_timeout: 4, task_lease_seconds: 8, lease_action: freeze}}
storage: {{snapshot_dir: {home}/scheduler, segment_mb: 1}}
"""
_AGENT = """\
agent: {{id: {name}, heartbeat_interval: 1}}
scheduler: {{master_address: "127.0.0.1:{grpc}", retry_interval: 0.2, max_retry_interval: 1}}
gpu: {{detection_method: simulated, simulated: "4xV100"}}
executor: {{work_dir: {home}/{name}, stop_grace_seconds: 1}}
"""


class Site:
    def __init__(self, nodes: int) -> None:
        # Short: the path of a Unix socket has room for 107 bytes.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-storm-"))
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        (self.home / "runs").mkdir()
        http, grpc = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}"
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        (self.home / "scheduler.yaml").write_text(_SCHEDULER.format(home=self.home, http=http, grpc=grpc))
        for name in self.names:
            (self.home / f"{name}.yaml").write_text(_AGENT.format(home=self.home, name=name, grpc=grpc))

    def start(self, name: str) -> None:
        """The scheduler, or the agent of a node. Starting a service that runs does nothing."""
        running = self._services.get(name)
        if running is not None and running.poll() is None:
            return
        with (self.home / f"{name}.log").open("ab") as log:
            self._services[name] = subprocess.Popen(
                self._command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("DGPU")},
                start_new_session=True,
            )

    def _command(self, name: str) -> list[str]:
        verb = "scheduler" if name == "scheduler" else "agent"
        return [sys.executable, "-m", "dgpu", verb, "--config", str(self.home / f"{name}.yaml")]

    def kill(self, name: str) -> None:
        """Returns when the process is gone, so that the next start sees that it is."""
        running = self._services.get(name)
        if running is not None:
            running.kill()
            running.wait()

    def died(self) -> list[str]:
        return [name for name, service in self._services.items() if service.poll() is not None]

    def service(self, name: str) -> int | None:
        running = self._services.get(name)
        return running.pid if running is not None and running.poll() is None else None

    def follower(self) -> int | None:
        scheduler = self.service("scheduler")
        return next((pid for pid in children(scheduler) if b"follower" in command_line(pid)), None)

    def keeper(self, name: str) -> int | None:
        # Unlike glob, walk does not mind directories that are removed meanwhile.
        found = [
            pathlib.Path(folder, "keeper.json")
            for folder, _, files in os.walk(self.home / name)
            if "keeper.json" in files
        ]
        for file in sorted(found):
            with contextlib.suppress(OSError, ValueError, KeyError):
                pid = int(json.loads(file.read_text())["pid"])
                if b"keeper_main" in command_line(pid):
                    return pid
        return None

    def guard(self, name: str) -> int | None:
        keeper = self.keeper(name)
        above = parent(keeper)
        return above if above is not None and b"keeper_main" in command_line(above) else None

    def scribe(self, name: str) -> int | None:
        """None: there is none, or its guard was killed, so that nothing tells it from a keeper."""
        keeper = self.keeper(name)
        return next((pid for pid in children(self.guard(name)) if pid != keeper), None)

    def left(self) -> list[str]:
        """Processes that belong to this site and still live."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            line = command_line(int(entry.name)).replace(b"\0", b" ").decode(errors="replace")
            if str(self.home) in line and int(entry.name) != os.getpid():
                found.append(f"{entry.name} {line[:120]}")
        return found

    def close(self) -> list[str]:
        """Ends all processes; returns those that did not end."""
        for service in self._services.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(service.pid, signal.SIGCONT)
                service.terminate()
        for service in self._services.values():
            try:
                service.wait(30)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()
        for name in self.names:
            end_keepers(self.home / name)
        wait_until(lambda: not self.left(), 20)
        return self.left()

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def registered(client: Client) -> int:
    """How many nodes are ready. None while no scheduler answers."""
    with contextlib.suppress(Unreachable):
        return sum(node.status == "ready" for node in client.nodes().nodes)
    return 0


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def send(pid: int | None, number: signal.Signals) -> bool:
    """False: there is no such process at the moment."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def command_line(pid: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int | None) -> int | None:
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def children(pid: int | None) -> list[int]:
    if pid is None:
        return []
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
