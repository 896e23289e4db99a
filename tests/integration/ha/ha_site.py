"""Three machines on one: each has a directory, and the commands of an operator run as processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

from dgpu.cli.main import run
from dgpu.entry.chaos.ports import free_port
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.processes import holders, stop_process
from integration.ha.member_cluster import PATIENCE_S, eventually
from integration.service.serving import Served

SCHEDULER = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}", grpc_tls: true,
  join_address: "127.0.0.1:{join}"}}
storage: {{snapshot_dir: {home}/a}}
"""


class HaSite:
    def __init__(self, home: pathlib.Path) -> None:
        self.home = home
        self.a, self.b, self.c = (f"127.0.0.1:{free_port(following=1)}" for _ in range(3))
        self.join_port = free_port()
        self.services: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def members(self) -> list[str]:
        return [self.a, self.b, self.c]

    def directory(self, name: str) -> pathlib.Path:
        return self.home / name

    def files(self, name: str) -> MemberFiles:
        return MemberFiles(self.directory(name))

    def dgpu(self, *arguments: str) -> tuple[int, str, str]:
        """A command in this process: exit code, stdout, stderr."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(each) for each in arguments])
        return code, out.getvalue(), err.getvalue()

    def good(self, *arguments: str):
        code, out, err = self.dgpu(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def bad(self, *arguments: str) -> str:
        code, _, err = self.dgpu(*arguments)
        assert code == 6, (code, err)
        return err

    def with_tasks(self, count: int) -> None:
        """A single scheduler has run in the directory of a."""
        served = Served(self.directory("a"))
        served.ask("/api/v1/tasks/batch", {"task": {"command": "true", "held": True}, "count": count})
        assert served.end(signal.SIGTERM) == 0

    def init(self, *, me: str | None = None):
        members = [part for each in self.members for part in ("--member", each)]
        return self.good("ha", "init", "--dir", self.directory("a"), *members, "--me", me or self.a)

    def start_member(self, name: str) -> None:
        self.start_service(f"member {name}", "witness", "--dir", str(self.directory(name)))

    def start_door(self) -> None:
        """A scheduler that lets machines join."""
        config = self.home / "scheduler.yaml"
        ports = {"http": free_port(), "grpc": free_port(), "join": self.join_port}
        config.write_text(SCHEDULER.format(home=self.home, **ports))
        self.start_service("scheduler", "scheduler", "--config", str(config))
        eventually(lambda: "joining_open" in self.log("scheduler"), "the port for joining")

    def token(self, address: str, *flags: str) -> str:
        return self.good("ha", "token", address, "--dir", self.directory("a"), *flags)["token"]

    def join(self, name: str, address: str, *flags: str):
        token = self.token(address, *flags)
        server = f"127.0.0.1:{free_port()},127.0.0.1:{self.join_port}"  # a standby does not listen
        return self.good(
            "ha", "join", "--dir", self.directory(name), "--server", server, "--token", token, *flags
        )

    def status(self, name: str = "a"):
        return json.loads(self.dgpu("ha", "status", "--dir", self.directory(name), "-o", "json")[1])

    def states(self, name: str = "a") -> dict[str, str]:
        return {row["address"]: row["state"] for row in self.status(name)["members"]}

    def until_healthy(self, count: int = 3) -> None:
        eventually(
            lambda: sum(row["healthy"] for row in self.status()["members"]) == count,
            f"{count} healthy members",
        )

    def log(self, service: str) -> str:
        return (self.home / f"{service}.log").read_text()

    def kill(self, service: str) -> None:
        self.services[service].kill()
        self.services[service].wait()

    def kill_member(self, name: str) -> None:
        """The machine is gone: its supervisor and its etcd."""
        self.kill(f"member {name}")
        for ref in holders(self.files(name).hold):
            stop_process(ref, 0)

    def close(self) -> None:
        running = [service for service in self.services.values() if service.poll() is None]
        for service in running:
            service.terminate()  # a killed scheduler would leave its follower, which still writes to the directory
        for service in running:
            service.wait(PATIENCE_S)
        for hold in self.home.glob("*/engine/etcd.hold"):
            for ref in holders(hold):
                stop_process(ref, 0)

    def start_service(self, service: str, *arguments: str, **environ: str) -> None:
        with (self.home / f"{service}.log").open("ab") as log:
            self.services[service] = subprocess.Popen(
                [sys.executable, "-m", "dgpu", *arguments],
                stdout=log,
                stderr=log,
                cwd="/",
                env=os.environ | environ,
            )
