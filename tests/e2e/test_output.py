"""Large output: complete while its node is connected, and with exact gaps while it is not."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import pytest

from .conftest import eventually

LINES = 560_000  # of 73 bytes: 40 MB
TALKER = """
import pathlib, sys, time
print("IMPORTANT first line")
for number in range(int(sys.argv[1])): print(f"{number:08d} " + "x" * 63)
print("LAST line", flush=True)
while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.05)
"""
MAX_GROWTH_KIB = 40 * 1024  # less than the output once


@pytest.fixture
def talk(site):
    """Starts a task that has written all of its output and runs on; `go` lets it end."""
    site.up("--fake", "2xV100")
    script = site.home / "talk.py"
    script.write_text(TALKER)
    go = site.home / "go"
    task_id = site.submit("-G", "1", "--", sys.executable, script, LINES, go)
    eventually(lambda: "LAST line" in site.good("logs", task_id, "--tail", "1").out, "all output", 120)
    return task_id, go


def whole() -> str:
    digest = hashlib.sha256(b"IMPORTANT first line\n")
    for number in range(LINES):
        digest.update(f"{number:08d} {'x' * 63}\n".encode())
    digest.update(b"LAST line\n")
    return digest.hexdigest()


def first_line(site, task_id) -> bytes:
    """`dgpu logs ID | head -1`, with the exit code of the first."""
    with subprocess.Popen(
        site.command("logs", task_id), env=site.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as logs:
        assert logs.stdout is not None
        assert logs.stderr is not None
        line = logs.stdout.readline()
        logs.stdout.close()
        assert logs.stderr.read() == b""
        assert logs.wait(60) == 0
    return line


def digest_of_download(site, task_id) -> str:
    url = f"{site.record['url']}/api/v1/tasks/{task_id}/logs"
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=60) as answer:
        while piece := answer.read(1 << 16):
            digest.update(piece)
    return digest.hexdigest()


def digest_of_logs(site, task_id) -> str:
    digest = hashlib.sha256()
    with subprocess.Popen(site.command("logs", task_id), env=site.env, stdout=subprocess.PIPE) as logs:
        assert logs.stdout is not None
        while piece := logs.stdout.read(1 << 16):
            digest.update(piece)
    return digest.hexdigest()


def peaks_kib(site) -> dict[str, int]:
    """The most memory that scheduler, agent and keeper ever had."""
    pids = {"scheduler": site.record["scheduler"]["pid"], "agent": site.record["agent"]["pid"]}
    for number, keeper in enumerate(site.keepers()):
        pids[f"keeper {number}"] = getattr(keeper, "pid", keeper)
    found = {}
    for name, pid in pids.items():
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        found[name] = int(status.partition("VmHWM:")[2].split()[0])
    return found


def test_all_of_it_can_be_read_during_and_after_the_run_in_bounded_memory(site, talk) -> None:
    task_id, go = talk
    before = peaks_kib(site)
    assert first_line(site, task_id) == b"IMPORTANT first line\n"
    assert digest_of_download(site, task_id) == whole()
    go.touch()
    assert site.dgpu("wait", task_id).code == 0
    eventually(lambda: stored_bytes(site, task_id), "the output to be stored")
    assert first_line(site, task_id) == b"IMPORTANT first line\n"
    assert digest_of_download(site, task_id) == whole()
    assert digest_of_logs(site, task_id) == whole()
    after = peaks_kib(site)
    assert {
        name: after[name] - before[name] for name in before if after[name] - before[name] > MAX_GROWTH_KIB
    } == {}


def stored_bytes(site, task_id) -> int | None:
    with urllib.request.urlopen(f"{site.record['url']}/api/v1/tasks/{task_id}/output", timeout=60) as answer:
        return json.load(answer)["bytes"]


def test_without_its_node_the_gap_is_told(site, talk) -> None:
    task_id, go = talk
    go.touch()
    assert site.dgpu("wait", task_id).code == 0
    eventually(lambda: stored_bytes(site, task_id), "the output to be stored")
    url = site.record["url"]  # without it, a scheduler on the default port might answer
    site.interrupt()
    eventually(lambda: site.dgpu("ps", "--server", url).code == 3, "the scheduler to be gone")
    site.up("--fake", "2xV100")
    assert digest_of_logs(site, task_id) == whole()  # a new scheduler finds the node and the rest there

    agent = site.record["agent"]["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        eventually(lambda: "left out here" in logs_of(site, task_id), "the node to be given up", 120)
        lines = logs_of(site, task_id).splitlines()
    finally:
        os.kill(agent, signal.SIGCONT)
    (mark,) = (line for line in lines if line.startswith("[dgpu: "))
    node = site.task(task_id)["node"]
    assert f"bytes left out here; the whole output is on node {node} until 20" in mark
    assert lines[0] == "IMPORTANT first line"
    assert lines[-1] == "LAST line"
    assert all(len(line) == 72 for line in lines[lines.index(mark) + 1 : -1])


def logs_of(site, task_id) -> str:
    """Ended after a while: a node that does not answer is noticed later."""
    try:
        return site.dgpu("logs", task_id, timeout=5).out
    except subprocess.TimeoutExpired:
        return ""


def test_prints_of_a_script_that_is_cancelled_are_kept(site) -> None:
    site.up("--fake", "2xV100")
    script = site.home / "quiet.py"
    script.write_text("import time\nprint('step 1')\ntime.sleep(1000)\n")
    task_id = site.submit("-G", "1", "--", sys.executable, script)
    eventually(lambda: site.good("logs", task_id).out == "step 1\n", "the print to arrive")
    site.good("cancel", task_id)
    eventually(lambda: site.task(task_id)["status"] == "cancelled", "the task to end")
    assert site.good("logs", task_id).out == "step 1\n"
    chosen = site.submit(
        "-G", "1", "--env", "PYTHONUNBUFFERED=", "--", "sh", "-c", "echo [$PYTHONUNBUFFERED]"
    )
    assert site.dgpu("wait", chosen).code == 0
    assert site.good("logs", chosen).out == "[]\n"
