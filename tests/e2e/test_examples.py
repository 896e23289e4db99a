"""The examples run as they are printed."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def test_the_example_client_submits_and_shows_each_tasks_output(running_site):
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "examples" / "client.py",
            "--api",
            running_site.record["url"],
            "--tenant",
            "team-a",
            "--tasks",
            "3",
        ],
        env=running_site.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("success" in line and "hello from task-" in line for line in lines)


def test_the_python_lines_of_the_readme_run_as_they_are_printed(running_site):
    [lines] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", lines],
        env=running_site.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in {"success", "failed"}  # whether there is a train.py is not ours to say
