"""Work directories and programs on network mounts, with servers that answer and servers that do not."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dgpu.agent.keeper_settings import KeeperSettings
from integration.agent import dead_mount_keeper
from integration.agent.keeping import Kept, is_alive, wait_for


class MountedKept(Kept):
    def launch(self, settings: KeeperSettings) -> None:
        for directory in (settings.directory, settings.work_dir, settings.output_dir):
            Path(directory).mkdir(parents=True, exist_ok=True)
        arguments = [sys.executable, "-I", "-S", dead_mount_keeper.__file__]
        subprocess.run([*arguments, json.dumps(dataclasses.asdict(settings))], check=True, timeout=60)


@pytest.fixture
def kept(tmp_path) -> Iterator[Kept]:
    for name in ("net", "dead"):
        (tmp_path / name).mkdir()
    kept = MountedKept(tmp_path)
    yield kept
    kept.close()


@pytest.mark.parametrize(
    "facts", [{"cwd": "{}/dead"}, {"argv": ["tool"], "env": {"PATH": "{}/dead:/usr/bin"}}]
)
def test_a_start_that_hangs_on_a_dead_mount_hangs_alone(kept, tmp_path, facts) -> None:
    here = str(tmp_path)
    filled = json.loads(json.dumps(facts).replace("{}", here))
    order = kept.order(1, "true", grace_ms=100, **filled)
    kept.send({"spawn": [order, kept.order(2, "exit 5", cwd=here)], "ping": 7})
    assert kept.wait_pong() == 7
    assert kept.wait_ended(2)["exit_code"] == 5
    kept.send({"spawn": [kept.order(3, "sleep 600", timeout_ms=200, grace_ms=100)]})
    assert kept.wait_ended(3)["outcome"] == "timeout"
    assert 1 not in kept.started
    kept.send({"stop": [[1, 0, "stopped"]]})
    assert kept.wait_ended(1)["outcome"] == "stopped"
    assert 1 not in kept.started


def test_a_task_on_a_network_mount_runs_like_any_other(kept, tmp_path) -> None:
    kept.spawn(1, "pwd; echo $X; ulimit -n; exit 7", cwd=str(tmp_path / "net"), env={"X": "x y"})
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("exited", 7)
    assert 1 in kept.started
    kept.spawn(2, "pwd; echo $X; ulimit -n; exit 7", cwd=str(tmp_path), env={"X": "x y"})
    kept.wait_ended(2)
    assert kept.output(1).replace(b"/net\n", b"\n") == kept.output(2)
    kept.spawn(3, "sleep 600", cwd=str(tmp_path / "net"), timeout_ms=300)
    assert kept.wait_ended(3)["outcome"] == "timeout"
    assert not kept.processes(3)


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"cwd": "{}/net/nowhere"}, 126, "workdir {}/net/nowhere: No such file or directory"),
        ({"cwd": "{}/net", "argv": ["no-such-program"]}, 127, "no-such-program: command not found"),
        ({"cwd": "{}/net", "argv": ["./plain"]}, 126, "./plain: not executable"),
    ],
)
def test_what_cannot_start_on_a_network_mount_says_why(
    kept, tmp_path, facts: dict[str, Any], code, words
) -> None:
    (tmp_path / "net" / "plain").write_text("x")
    filled = json.loads(json.dumps(facts).replace("{}", str(tmp_path)))
    kept.send({"spawn": [kept.order(1, "true", **filled)]})
    end = kept.wait_ended(1)
    assert (end["outcome"], end["exit_code"]) == ("cannot_start", code)
    assert end["error"].startswith(words.replace("{}", str(tmp_path)))
    assert 1 not in kept.started


def test_a_script_without_an_interpreter_line_runs_on_a_network_mount(kept, tmp_path) -> None:
    script = tmp_path / "net" / "run"
    script.write_text("exit 9\n")
    script.chmod(0o755)
    kept.send({"spawn": [kept.order(1, [str(script)], cwd=str(tmp_path / "net"))]})
    assert kept.wait_ended(1)["exit_code"] == 9


def test_a_start_that_hangs_does_not_outlive_the_keeper(kept, tmp_path) -> None:
    """It carries no mark yet, so no later keeper would find it."""
    kept.spawn(1, "true", cwd=str(tmp_path / "dead"))
    kept.send({"ping": 1})
    assert kept.wait_pong() == 1
    children = wait_for(lambda: Path(f"/proc/{kept.pid}/task/{kept.pid}/children").read_text().split())
    guard = int(Path(f"/proc/{kept.pid}/stat").read_text().rpartition(")")[2].split()[1])
    keeper = kept.pid
    for pid in (guard, keeper):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(int(child)) for child in children))
    MountedKept(tmp_path).close()
