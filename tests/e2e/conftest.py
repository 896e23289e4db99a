"""A whole dgpu on a directory and ports of its own, driven through the command line as a person would."""

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

import pytest

from dgpu.entry.keepers import end_keepers, find_keepers

PATIENCE_SECONDS = 60.0


def eventually(condition, what, seconds=PATIENCE_SECONDS):
    """Waits for a fact, never for a time; the bound is only there to end a broken run."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


def files_in(folder):
    """Regular files and their contents. Meanwhile, files and directories may come and go, unlike for a glob."""
    for place, _, names in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.read_bytes()


class Answer:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def __repr__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Site:
    def __init__(self):
        # short: the path of a Unix socket has room for 107 bytes
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-e2e-"))
        self.data_dir = self.home / "state"
        self.supervisor = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DGPU")}
        self.env = {**kept, "DGPU_DATA_DIR": str(self.data_dir), "HOME": str(self.home), "NO_COLOR": "1"}

    def command(self, *arguments):
        return [sys.executable, "-m", "dgpu", *map(str, arguments)]

    def dgpu(self, *arguments, env=None, cwd=None, timeout=120, given=None):
        done = subprocess.run(
            self.command(*arguments),
            env={**self.env, **(env or {})},
            cwd=cwd or self.home,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Answer(done)

    def good(self, *arguments, **options):
        answer = self.dgpu(*arguments, **options)
        assert answer.code == 0, answer
        return answer

    def json(self, *arguments):
        return json.loads(self.good(*arguments, "--json").out)

    def start(self, *arguments, **options):
        """Any verb as a process of its own, in its own group, so that it can be sent a Ctrl-C."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.env,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def up(self, *arguments):
        self.supervisor = self.start(
            "up", "--http-port", "0", "--grpc-port", "0", *(arguments or ("--fake", "2xV100"))
        )
        line = self.supervisor.stdout.readline()
        if "dgpu is up at" not in line:
            self.supervisor.kill()
            pytest.fail(f"up did not start: {line}\n{self.supervisor.stderr.read()}")
        return line

    def interrupt(self):
        """Sends Ctrl-C; returns the last lines of `up`."""
        os.killpg(self.supervisor.pid, signal.SIGINT)
        _, err = self.supervisor.communicate(timeout=PATIENCE_SECONDS)
        code, self.supervisor = self.supervisor.returncode, None
        return code, err

    @property
    def record(self):
        return json.loads((self.data_dir / "up.json").read_text())

    def submit(self, *arguments):
        return self.good("submit", *arguments).out.strip()

    def task(self, task_id):
        return self.json("show", task_id)

    def started(self, task_id):
        eventually(lambda: self.task(task_id)["started_at"], f"{task_id} to start")

    def keepers(self):
        return find_keepers(self.data_dir / "agent")

    def close(self):
        if self.supervisor is not None:
            self.supervisor.terminate()
            self.supervisor.communicate(timeout=PATIENCE_SECONDS)
        self.dgpu("down", "--stop-tasks")
        end_keepers(self.data_dir / "agent")
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def site():
    place = Site()
    yield place
    place.close()


@pytest.fixture(scope="module")
def running_site():
    """One dgpu for all tests of a module that leave it as they found it."""
    place = Site()
    place.up()
    yield place
    place.close()
