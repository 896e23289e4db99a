"""A real keeper in a directory of the test, and the agent's end of its socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgpu.agent.frames import Decoder, Frame, encode
from dgpu.agent.keeper_link import connect, launch
from dgpu.agent.keeper_settings import KeeperSettings, boot_ms
from dgpu.agent.tree import markers

PATIENCE_SECONDS = 60.0


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Until it is true, however slow the machine."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


class Kept:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = KeeperSettings(
            directory=str(directory / "keeper"),
            work_dir=str(directory / "tasks"),
            output_dir=str(directory / "output"),
            **settings,
        )
        self.launch(self.settings)
        self.connect()

    def launch(self, settings: KeeperSettings) -> None:
        launch(settings)

    def connect(self, link: socket.socket | None = None) -> None:
        self._link = link or connect(self.directory / "keeper")
        self._link.settimeout(PATIENCE_SECONDS)
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self.started: dict[int, int] = {}
        self.roots: dict[int, int] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self.frozen: list[int] = []
        first = self._next_frame()
        assert "hello" in first, first
        self.hello = first["hello"]
        self.known = {record["lease"]: record for record in self.hello["leases"]}

    def connect_again(self) -> None:
        """As an agent that is started again does: a keeper that is busy notices the death of the last one a little
        later.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.connect()
            except AssertionError as refused:
                if "another agent" not in str(refused) or time.monotonic() > deadline:
                    raise
                self._link.close()
                time.sleep(0.02)

    def disconnect(self) -> None:
        """As a killed agent does."""
        self._link.close()

    @property
    def pid(self) -> int:
        return json.loads((self.directory / "keeper" / "keeper.json").read_text())["pid"]

    @property
    def guard_pid(self) -> int:
        return int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[1])

    @property
    def scribe_pid(self) -> int:
        """The guard starts it first, then the process for terminals, then the keeper."""
        scribe, _ = sorted(set(children_of(self.guard_pid)) - {self.pid})
        return scribe

    def send(self, frame: Frame) -> None:
        self._link.sendall(encode(frame))

    def spawn(self, lease: int, command: str | list[str], **facts: Any) -> None:
        self.send({"spawn": [self.order(lease, command, **facts)]})

    def order(self, lease: int, command: str | list[str], **facts: Any) -> dict[str, Any]:
        env = {"PATH": "/usr/bin:/bin", "DGPU_LEASE_ID": str(lease), "DGPU_KEEPER": self.hello["keeper"]}
        return {
            "lease": lease,
            "task": 100 + lease,
            "attempt": 1,
            "node": "n1",
            "gpus": [],
            "argv": ["/bin/sh", "-c", command] if isinstance(command, str) else command,
            "cwd": "",
            "timeout_ms": 0,
            "grace_ms": 10_000,
            **facts,
            "env": env | facts.get("env", {}),
        }

    def wait_started(self, lease: int) -> None:
        while lease not in self.started:
            self._take(self._next_frame())

    def wait_ended(self, lease: int) -> dict[str, Any]:
        while lease not in self.ended:
            self._take(self._next_frame())
        return self.ended[lease]

    def wait_frozen(self, lease: int) -> None:
        while lease not in self.frozen:
            self._take(self._next_frame())

    def wait_pong(self) -> int:
        while "pong" not in (frame := self._next_frame()):
            self._take(frame)
        self.stalled = frame.get("stalled", False)
        return frame["pong"]

    def is_stalled(self) -> bool:
        """From the keeper's answer."""
        self.send({"ping": 1})
        self.wait_pong()
        return self.stalled

    def output(self, lease: int) -> bytes:
        folder = self.directory / "output" / str(lease)
        return b"".join(file.read_bytes() for file in sorted(folder.glob("[0-9]*")))

    def processes(self, lease: int | None = None) -> set[int]:
        """Living ones that carry the keeper's mark, straight from /proc."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                by_lease, by_keeper = markers(int(entry.name))
                if by_keeper == self.hello["keeper"] and lease in {None, int(by_lease or 0)}:
                    found.add(int(entry.name))
        return found

    def close(self) -> None:
        try:
            keeper = self.pid
            self.send({"shutdown": True})
        except OSError:
            return
        wait_for(lambda: not is_alive(keeper))
        self._link.close()

    def _next_frame(self) -> Frame:
        while not self._frames:
            received = self._link.recv(256 * 1024)
            assert received, "the keeper hung up"
            self._frames = self._decoder.feed(received)
        return self._frames.pop(0)

    def _take(self, frame: Frame) -> None:
        self.started.update(dict(frame.get("started", ())))
        self.roots.update(dict(frame.get("pids", ())))
        self.ended.update({end["lease"]: end for end in frame.get("ended", ())})
        self.frozen.extend(frame.get("frozen", ()))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def pid_in(file: Path) -> int:
    """Written by a task, once it has been written wholly."""
    return int(wait_for(lambda: file.exists() and file.read_text().strip()))


def word(node: str = "n1", *, lease_ms: int, action: str, at_ms: int | None = None) -> Frame:
    return {"word": [[node, boot_ms() if at_ms is None else at_ms, lease_ms, action]]}


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found
