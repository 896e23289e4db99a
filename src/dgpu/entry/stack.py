"""A scheduler and an agent of this machine on one state directory: used by `up` and by `demo`."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dgpu.agent.probe.models import SimulatedCards, parse_cards
from dgpu.entry.ask import is_ready, registrations
from dgpu.entry.processes import Service, set_aside
from dgpu.entry.state_dir import StateDir, write_private
from dgpu.wire import isolation

HOST = "127.0.0.1"
HTTP_PORT = 8080
GRPC_PORT = 9090
DEFAULT_CARDS = "4xV100"
READY_SECONDS = 60.0
_POLL_SECONDS = 0.03
_USERS = "DGPU__ISOLATION__USERS"
_TASKS_OF_USERS = "/var/lib/dgpu-tasks"
_ACCEPT_LOST_TAIL = "--accept-lost-tail"


class StartFailed(Exception):  # noqa: N818  it says what happened
    """A message with the service that did not start and the end of its log."""


class SchedulerDied(StartFailed):
    """The scheduler was ready but ended while its agent was starting."""


class StartStopped(Exception):  # noqa: N818
    """A stop was requested during the start."""


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of the stack: real ones, or simulated ones on a number of nodes."""

    words: str
    simulated: tuple[SimulatedCards, ...] = ()
    nodes: int = 1
    why_simulated: str = ""  # empty: real GPUs, or simulated ones as requested


def choose_cards(fake: str | None, nodes: int) -> Cards:
    """ValueError for an invalid list. Detects real GPUs only if none are simulated."""
    if fake is not None:
        return _simulated_cards(fake, nodes)
    from dgpu.agent.probe.detect import detect

    found = detect()
    if found.probe is None:
        return _simulated_cards(DEFAULT_CARDS, nodes, why=found.why_none)
    found.probe.close()
    if nodes > 1:
        raise ValueError("several nodes on one machine must be simulated; add for example --fake 4xV100")
    models: dict[str, int] = {}
    for gpu in found.gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    return Cards(words=", ".join(f"{count} x {model}" for model, count in models.items()))


def _simulated_cards(text: str, nodes: int, why: str = "") -> Cards:
    cards = parse_cards(text)
    words = ", ".join(f"{entry.count} x {entry.model}" for entry in cards)
    return Cards(
        words=f"{words}, simulated" if nodes == 1 else f"{words} on each of {nodes} nodes, simulated",
        simulated=cards,
        nodes=nodes,
        why_simulated=why,
    )


def free_port(wanted: int, taken: int = 0) -> int:
    """The wanted port, or any free one if it is in use."""
    for port in (wanted, 0, 0, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
            if found != taken:
                return found
    raise StartFailed(f"No free port on {HOST}.")


class Stack:
    """Knows how to start, watch and stop the two services. Prints nothing."""

    def __init__(
        self,
        state_dir: StateDir,
        cards: Cards,
        *,
        http_port: int,
        grpc_port: int,
        storage: Mapping[str, Any] | None = None,  # further settings of the section `storage`
    ) -> None:
        self.state_dir = state_dir
        self._storage = dict(storage or {})
        self.cards = cards
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.should_stop: Callable[[], bool] = lambda: False
        self._registered_before: dict[str, str] = {}
        environ = _environment()
        self.scheduler = self._service("scheduler", environ)
        self.agent = self._service("agent", environ)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self.grpc_port}"

    def _service(self, name: str, environ: Mapping[str, str]) -> Service:
        arguments = [sys.executable, "-m", "dgpu", name, "--config", str(self.state_dir.config_file(name))]
        return Service(
            name, arguments, self.state_dir.log_file(name), environ, self.state_dir.hold_file(name)
        )

    def prepare(self) -> None:
        self.state_dir.create()
        self.write_config()
        for service in (self.scheduler, self.agent):
            set_aside(service.log_file)

    def write_config(self) -> None:
        for name, settings in (("scheduler", self._scheduler_settings()), ("agent", self._agent_settings())):
            write_private(self.state_dir.config_file(name), msgspec.yaml.encode(settings))

    def _scheduler_settings(self) -> dict[str, Any]:
        # One machine: no GPU is idle while a task waits, there are no time limits, and no network can fail.
        return {
            "server": {"http_address": f"{HOST}:{self.http_port}", "grpc_address": self.grpc_address},
            "scheduler": {"default_task_timeout_seconds": 0, "max_task_timeout_seconds": 0},
            "quota": {"mode": "borrow", "reclaim": "wait", "unknown_tenants": "create"},
            "agent": {"lease_action": "never"},
            "storage": {"snapshot_dir": str(self.state_dir.scheduler_dir), **self._storage},
            "alerts": {"rules": {"quota_usage": {"enabled": False}}},  # full use is normal on one machine
        }

    def _agent_settings(self) -> dict[str, Any]:
        gpu: dict[str, Any] = {"detection_method": "auto"}
        if self.cards.simulated:
            gpu = {
                "detection_method": "simulated",
                "simulated": [msgspec.to_builtins(entry) for entry in self.cards.simulated],
            }
        return {
            "agent": {"simulated_nodes": self.cards.nodes},
            # The scheduler is on this machine: reconnecting costs nothing.
            "scheduler": {
                "master_address": self.grpc_address,
                "retry_interval": 0.2,
                "max_retry_interval": 2,
            },
            "gpu": gpu,
            "executor": {"work_dir": str(self.state_dir.tasks_dir), "tasks_dir": self._tasks_dir()},
        }

    def _tasks_dir(self) -> str:
        """Other users cannot enter the state directory, so their tasks get directories beside it."""
        users = os.environ.get(_USERS, "")
        if os.geteuid() != 0 or users in {"", isolation.NONE}:
            return ""
        return f"{_TASKS_OF_USERS}/{hashlib.sha256(bytes(self.state_dir.path)).hexdigest()[:8]}"

    def accept_lost_tail(self) -> None:
        """Applies to the next start only: the operator accepted this loss, not a later one."""
        self.scheduler.arguments.append(_ACCEPT_LOST_TAIL)

    def start_scheduler(self) -> None:
        self.scheduler.start()
        if _ACCEPT_LOST_TAIL in self.scheduler.arguments:
            self.scheduler.arguments.remove(_ACCEPT_LOST_TAIL)
        # Another scheduler may have taken the port just before: its answer does not count.
        own = self.scheduler.listens_on
        self._await(self.scheduler, lambda: own(self.http_port) and is_ready(self.url))

    def start_agent(self) -> None:
        """Ready when every node has registered again: the scheduler may still count earlier sessions as connected.

        Raises SchedulerDied with the agent still running: start the scheduler again, then call this again.
        """
        if not self.agent.is_running:
            self._registered_before = registrations(self.url)
            self.agent.start()
        before = self._registered_before

        def registered() -> bool:
            if not self.scheduler.is_running:
                ended = (
                    f"The scheduler ended with code {self.scheduler.exit_code} while the agent was starting."
                )
                raise SchedulerDied(_told(ended, self.scheduler))
            now = registrations(self.url)
            return sum(1 for name, at in now.items() if before.get(name) != at) >= self.cards.nodes

        self._await(self.agent, registered)

    def _await(self, service: Service, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            if self.should_stop():
                raise StartStopped
            if not service.is_running:
                raise StartFailed(_told(f"The {service.name} ended with code {service.exit_code}.", service))
            if time.monotonic() > deadline:
                raise StartFailed(
                    _told(f"The {service.name} is not ready after {READY_SECONDS:.0f} s.", service)
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stops both services at once, then waits for each. Running tasks continue under their keeper."""
        for service in (self.agent, self.scheduler):
            service.signal(signal.SIGTERM)
        for service in (self.agent, self.scheduler):
            service.reap()


def _environment() -> dict[str, str]:
    """Passes overrides like DGPU__SCHEDULER__... on; addresses and directories are set here."""
    decided = {
        "DGPU__SERVER__HTTP_ADDRESS",
        "DGPU__SERVER__GRPC_ADDRESS",
        "DGPU__SERVER__GRPC_TLS",
        "DGPU__SERVER__HTTP_TLS",
        "DGPU__SERVER__JOIN_ADDRESS",
        "DGPU__STORAGE__SNAPSHOT_DIR",
        "DGPU__SCHEDULER__MASTER_ADDRESS",
        "DGPU__SCHEDULER__TLS__DIR",
        "DGPU__EXECUTOR__WORK_DIR",
    }
    kept = {name: value for name, value in os.environ.items() if name.upper() not in decided}
    return kept | {"PYTHONUNBUFFERED": "1"}


def _told(what: str, service: Service) -> str:
    end = service.tail()
    log = (
        f" Its log ({service.log_file}) ends with:\n{end}"
        if end
        else f" Its log is empty: {service.log_file}"
    )
    return what + log
