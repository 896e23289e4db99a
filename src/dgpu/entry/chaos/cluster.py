"""A throw-away cluster in managed mode: two schedulers, a witness and agents as real processes of this machine."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dgpu.entry.ask import ask
from dgpu.entry.chaos.machines import Machine, environment
from dgpu.entry.chaos.network import Network

NODES = ("n1", "n2")
_COMMAND_S = 120.0
_START_S = 90.0
_PAUSE_S = 0.1
_ASK_S = 1.0


class ChaosFailed(Exception):  # noqa: N818 - it says what happened
    """The run cannot go on. The text has the reason."""


class Cluster:
    def __init__(self, network: Network | None) -> None:
        # Short: the path of a Unix socket has room for 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="dgpu-chaos-"))
        self.network = network
        try:
            self.schedulers = [self._machine("a", "scheduler"), self._machine("b", "scheduler")]
            self.witness = self._machine("c", "witness")
            self.agents = [self._machine(name, "agent") for name in NODES]
        except BaseException:
            shutil.rmtree(self.home)
            raise

    def _machine(self, name: str, verb: Any) -> Machine:
        if self.network is None:
            return Machine(name, verb, self.home)
        host = self.network.add(name)
        return Machine(name, verb, self.home, host=host, inside=self.network.command(name))

    @property
    def members(self) -> list[Machine]:
        return [*self.schedulers, self.witness]

    @property
    def machines(self) -> list[Machine]:
        return [*self.members, *self.agents]

    @property
    def urls(self) -> dict[str, str]:
        """By scheduler."""
        return {machine.name: machine.url for machine in self.schedulers}

    def scheduler(self, name: str) -> Machine:
        return next(machine for machine in self.schedulers if machine.name == name)

    def found(self, say: Callable[[str], None]) -> None:
        """As an operator does it: init, then one machine after the other joins."""
        a, b = self.schedulers
        for scheduler in self.schedulers:
            scheduler.write_config()
        every = [part for machine in self.members for part in ("--member", machine.member)]
        self.dgpu(a, "ha", "init", "--config", str(a.config), *every, "--me", a.member)
        a.start()
        self.until(lambda: self.master() == a, "the first scheduler to lead")
        say("The first scheduler leads.")
        join = f"{a.host}:{a.join}"
        token = self.dgpu(a, "ha", "token", b.member, "--config", str(a.config))
        self.dgpu(b, "ha", "join", "--config", str(b.config), "--server", join, "--token", token)
        b.start()
        self.until(lambda: self.is_healthy(b), "the second member to vote")
        say("The second scheduler follows.")
        with ThreadPoolExecutor(max_workers=1) as beside:
            agents = beside.submit(self._add_agents, join)
            self._add_witness(join)
            agents.result()
        self.until(lambda: self.ready_nodes(a) == len(self.agents), "the nodes to be ready")
        say(f"The witness votes, and {len(self.agents)} nodes are ready.")

    def _add_witness(self, join: str) -> None:
        a, c = self.schedulers[0], self.witness
        token = self.dgpu(a, "ha", "token", c.member, "--witness", "--config", str(a.config))
        self.dgpu(c, "ha", "join", "--witness", "--dir", str(c.directory), "--server", join, "--token", token)
        c.start()
        self.until(lambda: self.is_healthy(c), "the witness to vote")

    def _add_agents(self, join: str) -> None:
        a = self.schedulers[0]
        for agent in self.agents:
            agent.write_config(self.schedulers)
            token = self.dgpu(a, "ca", "token", "--node", agent.name, "--config", str(a.config))
            self.dgpu(
                agent, "agent", "join", "--server", join, "--token", token, "--config", str(agent.config)
            )
            agent.start()

    def dgpu(self, machine: Machine, *arguments: str) -> str:
        """A command on this machine of the cluster; returns its stdout. Raises ChaosFailed."""
        command = [*machine.inside, sys.executable, "-m", "dgpu", *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_S,
                env=environment(self.home),
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ChaosFailed(f"dgpu {' '.join(arguments[:2])} took longer than {_COMMAND_S:g} s.") from None
        if done.returncode:
            raise ChaosFailed(f"dgpu {' '.join(arguments[:2])} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    # What the machines say. None of these waits long: a machine may be gone.

    def master(self) -> Machine | None:
        for machine in self.schedulers:
            answer = ask(machine.url, "/ready?role=master", timeout_seconds=_ASK_S)
            if answer is not None and answer.status == 200:
                return machine
        return None

    def standby(self) -> Machine | None:
        master = self.master()
        return next((machine for machine in self.schedulers if machine != master), None)

    def trouble(self) -> str:
        """The first thing that keeps the cluster from being whole; empty: it is whole."""
        master = self.master()
        if master is None:
            return "No scheduler leads."
        for machine in self.schedulers:
            answer = ask(machine.url, "/ready", timeout_seconds=_ASK_S)
            if answer is None or answer.status != 200:
                return f"Scheduler {machine.name} is not ready: {None if answer is None else answer.body}."
        if (ready := self.ready_nodes(master)) != len(self.agents):
            return f"{ready} of {len(self.agents)} nodes are ready."
        silent = [machine.name for machine in self.members if not self.is_healthy(machine)]
        return f"The member of {silent[0]} is not healthy." if silent else ""

    def is_ready(self, machine: Machine) -> bool:
        answer = ask(machine.url, "/ready", timeout_seconds=_ASK_S)
        return answer is not None and answer.status == 200

    def ready_nodes(self, scheduler: Machine) -> int:
        answer = ask(scheduler.url, "/api/v1/nodes", timeout_seconds=_ASK_S)
        if answer is None or answer.status != 200:
            return 0
        return sum(node["status"] == "ready" for node in answer.body["nodes"])

    def is_healthy(self, machine: Machine) -> bool:
        """The member votes and knows a leader of a majority."""
        return '"true"' in self._engine(machine, "/health") and self._number(machine, "is_learner") == 0

    def engine_leader(self) -> Machine | None:
        return next((machine for machine in self.members if self._number(machine, "is_leader") == 1), None)

    def _number(self, machine: Machine, name: str) -> float | None:
        """A number that the engine's member tells about itself."""
        prefix = f"etcd_server_{name} "
        for line in self._engine(machine, "/metrics").splitlines():
            if line.startswith(prefix):
                return float(line.removeprefix(prefix))
        return None

    def _engine(self, machine: Machine, path: str) -> str:
        """Empty: no answer. Over HTTP, because threads of a gRPC library may be in another network."""
        files = self.schedulers[0].files
        try:
            tls = ssl.create_default_context(cafile=str(files.authority))
            tls.load_cert_chain(files.certificate, files.key)
            connection = http.client.HTTPSConnection(
                machine.host, machine.member_port, timeout=_ASK_S, context=tls
            )
            with contextlib.closing(connection):
                connection.request("GET", path)
                return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return ""

    def until(self, condition: Callable[[], object], what: str, seconds: float = _START_S) -> None:
        give_up_at_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up_at_s:
                raise ChaosFailed(f"Waited {seconds:g} s in vain for {what}.")
            time.sleep(_PAUSE_S)

    def repair(self) -> None:
        """Ends every fault that may still be there."""
        if self.network is not None:
            self.network.repair()
        for machine in self.machines:
            machine.signal(signal.SIGCONT)
            machine.start()

    def close(self, *, keep: bool) -> None:
        """All processes end at once: each waits for the others a little."""
        with ThreadPoolExecutor(max_workers=len(self.machines)) as pool:
            for _ in pool.map(Machine.end, self.machines):
                pass
        if not keep:
            shutil.rmtree(self.home, ignore_errors=True)
