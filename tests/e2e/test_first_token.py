"""The first start of a cluster prints one token of an administrator, once, and never into a log."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from dgpu.client.sync import Client
from dgpu.entry.chaos.ports import free_port

from .conftest import PATIENCE_SECONDS, eventually, files_in

pytestmark = pytest.mark.slow
SECRET = re.compile(r"dgpu_[a-z2-7]{12}_[A-Za-z0-9_-]{43}")


class Scheduler:
    def __init__(self, home: pathlib.Path) -> None:
        self.home, self.port = home, free_port()
        self.log = home / "scheduler.log"
        (home / "scheduler.yaml").write_text(
            f'server: {{http_address: "127.0.0.1:{self.port}", grpc_address: "127.0.0.1:{free_port()}"}}\n'
            f"storage: {{snapshot_dir: {home}/state}}\nlogging: {{output: {self.log}, level: debug}}\n"
        )

    def run(self, *, stop: int = signal.SIGTERM, into: pathlib.Path | None = None, then=lambda: None) -> str:
        """Starts, waits until it is ready, and stops. Returns its stdout."""
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "dgpu", "scheduler", "--config", str(self.home / "scheduler.yaml")]
        env = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
        stdout = subprocess.PIPE if into is None else into.open("wb")
        process = subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.STDOUT)
        try:
            eventually(
                lambda: self.log.exists() and "scheduler_ready" in self.log.read_text(), "a ready scheduler"
            )
            then()
        finally:
            process.send_signal(stop)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return said.decode() if said else ""

    def files_with(self, text: str) -> list[str]:
        return [str(path) for path, content in files_in(self.home) if text.encode() in content]


@pytest.fixture
def scheduler(tmp_path):
    return Scheduler(tmp_path)


def test_the_first_start_prints_a_token_once(scheduler) -> None:
    said = scheduler.run(stop=signal.SIGKILL)
    (token,) = SECRET.findall(said)
    seen = []

    def sign_in() -> None:
        with Client(f"http://127.0.0.1:{scheduler.port}", token=token) as client:
            me = client.whoami()
            (listed,) = client.tokens()
            seen.append((me.role, me.source, listed.name, listed.expires_at is not None))

    assert "dgpu_" not in scheduler.run(then=sign_in), "a later start prints none"
    assert seen == [("admin", "token", "bootstrap", True)]
    secret = token.split("_", 2)[2]
    assert scheduler.files_with(secret) == []


def test_no_token_goes_into_a_file(scheduler) -> None:
    """As for the scheduler of dgpu up: its stdout is its log, and its user needs no token."""
    scheduler.run(into=scheduler.home / "stdout.log")
    assert not SECRET.search((scheduler.home / "stdout.log").read_text())
    assert scheduler.files_with("bootstrap") == []
