"""The machines of a throw-away cluster: their addresses, configuration files and processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dgpu.entry.chaos.ports import free_port
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.keepers import end_keepers
from dgpu.entry.processes import Service, holders, stop_process

LOOPBACK = "127.0.0.1"
CARDS = "4xV100"

_SCHEDULER = """\
server: {{http_address: "{host}:{http}", grpc_address: "{host}:{grpc}", grpc_tls: true,
  join_address: "{host}:{join}"}}
auth: {{mode: none}}
scheduler: {{keep_finished_tasks: 2000, keep_finished_seconds: 30}}
quota: {{mode: borrow, unknown_tenants: create}}
storage: {{snapshot_dir: {directory}}}
"""
_AGENT = """\
agent: {{id: {name}, heartbeat_interval: 1}}
scheduler: {{master_address: "{masters}", retry_interval: 0.2, max_retry_interval: 1}}
gpu: {{detection_method: simulated, simulated: "{cards}"}}
executor: {{work_dir: {directory}, stop_grace_seconds: 1}}
"""


class Machine:
    """One process of dgpu and what it starts. `inside` is put in front of every command on this machine."""

    def __init__(
        self,
        name: str,
        verb: Literal["scheduler", "witness", "agent"],
        home: Path,
        *,
        host: str = LOOPBACK,
        inside: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.verb = verb
        self.host = host
        self.inside = list(inside)
        self.directory = home / name
        self.config = home / f"{name}.yaml"
        self.http, self.grpc, self.join = (free_port() for _ in range(3))
        self.member_port = free_port(following=1)
        self.environ = environment(home) | ({"DGPU__HA__NAME": name} if verb == "scheduler" else {})
        where = ("--dir", str(self.directory)) if verb == "witness" else ("--config", str(self.config))
        self.service = Service(
            name,
            [*self.inside, sys.executable, "-m", "dgpu", verb, *where],
            home / f"{name}.log",
            self.environ,
            home / f"{name}.hold",
        )

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http}"

    @property
    def member(self) -> str:
        return f"{self.host}:{self.member_port}"

    @property
    def files(self) -> MemberFiles:
        return MemberFiles(self.directory)

    def write_config(self, masters: Sequence[Machine] = ()) -> None:
        if self.verb == "scheduler":
            text = _SCHEDULER.format(
                host=self.host, http=self.http, grpc=self.grpc, join=self.join, directory=self.directory
            )
        else:
            addresses = ",".join(f"{each.host}:{each.grpc}" for each in masters)
            text = _AGENT.format(name=self.name, masters=addresses, cards=CARDS, directory=self.directory)
        self.config.write_text(text, encoding="utf-8")

    def start(self) -> None:
        if not self.service.is_running:
            self.service.start()

    def signal(self, number: signal.Signals) -> None:
        self.service.signal(number)

    def kill(self) -> None:
        """The process alone: its member of the engine goes on."""
        self.service.signal(signal.SIGKILL)
        self.service.reap()

    def kill_with_member(self) -> None:
        members = self.member_processes()
        self.service.signal(signal.SIGKILL)
        for pid in members:
            _kill(pid)
        self.service.reap()

    def kill_member(self) -> None:
        """The etcd alone. Its supervisor starts it again."""
        for pid in self.member_processes():
            _kill(pid)

    def member_processes(self) -> list[int]:
        hold = self.files.hold
        return [ref.pid for ref in holders(hold)] if hold.exists() else []

    def end(self) -> None:
        """Nothing of this machine runs any more."""
        self.service.signal(signal.SIGCONT)
        self.service.signal(signal.SIGTERM)
        self.service.reap()
        if self.verb == "agent":
            end_keepers(self.directory)
        else:
            for pid in self.member_processes():
                _kill(pid)
        for ref in holders(self.service.hold_file) if self.service.hold_file.exists() else ():
            stop_process(ref)


def environment(home: Path) -> dict[str, str]:
    """No setting of the person who starts the run reaches the cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
    return kept | {"HOME": str(home), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
