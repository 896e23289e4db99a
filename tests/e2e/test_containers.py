"""Tasks in containers, as a person runs them: a real scheduler, a real agent, a real engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import sys

import pytest

from integration.agent.podman import IMAGE, podman  # noqa: F401 - a fixture

from .conftest import Site, eventually
from .typist import typing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def contained(podman):  # noqa: F811
    """A dgpu whose node runs containers, and may mount one directory."""
    site = Site()
    site.podman = podman
    site.shared = site.home / "shared"
    site.shared.mkdir()
    site.shared.chmod(0o755)
    site.home.chmod(0o755)
    site.env |= {
        "TERM": "xterm",
        "DGPU__EXECUTOR__EXECUTION_METHOD": "docker",
        "DGPU__EXECUTOR__DOCKER__SOCKET": podman.socket,
        "DGPU__EXECUTOR__DOCKER__NETWORK": "none",
        "DGPU__EXECUTOR__DOCKER__ALLOWED_MOUNTS": json.dumps([str(site.shared)]),
        "DGPU__EXECUTOR__STOP_GRACE_SECONDS": "0.5",
    }
    site.up()
    yield site
    site.close()


def last_container(site) -> None:
    eventually(lambda: not site.podman.containers(), "every container to be removed")


def test_a_task_runs_in_its_image_and_leaves_its_files(contained):
    (contained.shared / "in").write_text("data\n")
    answer = contained.dgpu(
        *(
            "run",
            "--image",
            IMAGE,
            "-G",
            "1",
            "--env",
            "A=b c",
            "--mount",
            f"{contained.shared}:/in:ro",
            "--",
        ),
        *(
            "sh",
            "-c",
            "cat /in/in; echo $A; echo $CUDA_VISIBLE_DEVICES $DGPU_TASK_ID; id -u; echo 1 > result; exit 7",
        ),
    )
    assert answer.code == 7, answer
    data, variable, gpu, user = answer.out.splitlines()
    assert (data, variable, user) == ("data", "b c", "65534")
    task = contained.json("ps", "-a")["tasks"][0]
    assert gpu == f"{task['allocated_gpus'][0]} {task['task_id']}"
    shown = contained.task(task["task_id"])
    assert (shown["image"], shown["mounts"]) == (IMAGE, [f"{contained.shared}:/in:ro"])
    contained.good("fetch", task["task_id"], "result", "--into", contained.home)
    assert (contained.home / "result").read_text() == "1\n"
    last_container(contained)


def test_a_task_without_an_image_is_a_process(contained):
    answer = contained.dgpu("run", "--", sys.executable, "-c", "print('here')")
    assert (answer.code, answer.out) == (0, "here\n")


def test_a_cancelled_task_leaves_no_container(contained):
    task_id = contained.submit("--image", IMAGE, "--", "sh", "-c", "echo up; while :; do sleep 0.05; done")
    eventually(lambda: "up" in contained.good("logs", task_id).out, "its output")
    contained.good("cancel", task_id)
    assert contained.dgpu("wait", task_id).code == 130
    last_container(contained)


def test_an_agent_that_is_killed_finds_its_container_again(contained):
    task_id = contained.submit(
        "--image", IMAGE, "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 9"
    )
    contained.started(task_id)
    eventually(contained.podman.containers, "its container")
    before = contained.record["agent"]["pid"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: contained.record.get("agent", {}).get("pid") not in {None, before}, "another agent")
    pathlib.Path(contained.task(task_id)["workdir"], "go").touch()
    assert contained.dgpu("wait", task_id).code == 9
    assert contained.task(task_id)["attempt"] == 1
    last_container(contained)


def test_commands_run_inside_a_container(contained):
    task_id = contained.submit(
        *("--image", IMAGE, "--env", "A=of the task", "--"),
        *("sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done"),
    )
    eventually(lambda: "up" in contained.good("logs", task_id).out, "its output")
    answer = contained.dgpu("exec", task_id, "--", "sh", "-c", "echo $A; pwd; id -u; echo bad >&2; exit 7")
    directory = contained.task(task_id)["workdir"]
    assert (answer.code, answer.out) == (7, f"of the task\n{directory}\n65534\n")
    assert answer.err == "bad\n"
    assert contained.dgpu("exec", "-i", task_id, "--", "cat", given="words\n").out == "words\n"
    missing = contained.dgpu("exec", task_id, "--", "no-such-program")
    assert missing.code == 127
    assert "no-such-program" in missing.err
    with typing(contained, "exec", "-it", task_id, "--", "sh", size=(31, 91)) as typist:
        typist.sees(rb"\$ ")
        eventually(lambda: size_of(typist) == b"31 91", "the size of the client")
        typist.type(b"tty\n")
        typist.sees(rb"/dev/pts/0")
        typist.type(b"sleep 1234\n")
        eventually(lambda: sleeps("1234"), "the command to run")
    eventually(lambda: not sleeps("1234"), "the command to end with its client")
    contained.good("exec", task_id, "--", "touch", "go")
    assert contained.dgpu("wait", task_id).code == 0
    last_container(contained)


def sleeps(seconds: str) -> bool:
    wanted = f"sleep\0{seconds}\0".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == wanted:
                return True
    return False


def test_a_container_has_a_terminal_that_resizes_and_can_be_attached(contained):
    with typing(contained, "run", "-it", "--image", IMAGE, "--", "sh", size=(33, 101)) as typist:
        typist.sees(rb"\$ ")
        eventually(lambda: size_of(typist) == b"33 101", "the size of the client")
        typist.type(b"echo term: $TERM\n")
        typist.sees(rb"term: xterm")
        typist.resize(41, 77)
        eventually(lambda: size_of(typist) == b"41 77", "the new size")
        typist.type(b"sleep 1235\n")
        eventually(lambda: sleeps("1235"), "sleep to run")
        typist.type(b"\x03")
        typist.type(b"echo code $?\n")
        typist.sees(rb"code 130")
        typist.type(b"\x10\x11")  # detach
        typist.ends()
    task_id = contained.json("ps")["tasks"][0]["task_id"]
    os.kill(before := contained.record["agent"]["pid"], signal.SIGKILL)
    eventually(lambda: contained.record.get("agent", {}).get("pid") not in {None, before}, "another agent")
    with typing(contained, "attach", task_id, size=(20, 60)) as typist:
        typist.sees(rb"code 130")
        eventually(lambda: size_of(typist) == b"20 60", "the size of the new client")
        typist.type(b"exit 42\n")
        assert typist.ends() == 42
    assert "33 101" in contained.good("logs", task_id).out
    last_container(contained)


def size_of(typist):
    typist.type(b"echo size: $(stty size).\n")
    return typist.sees(rb"size: ([0-9 ]*)\.")[1]


def test_the_time_limit_holds_while_the_agent_is_dead(contained):
    task_id = contained.submit("--image", IMAGE, "-t", "2s", "--", "sh", "-c", "while :; do sleep 0.05; done")
    contained.started(task_id)
    os.kill(contained.record["agent"]["pid"], signal.SIGKILL)
    assert contained.dgpu("wait", task_id).code == 124
    last_container(contained)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--image", "localhost/nope:1"), "localhost/nope:1"),
        (("--image", IMAGE, "--mount", "/etc:/in"), "/etc is outside executor.docker.allowed_mounts"),
        (("--image", IMAGE, "--workdir", "/etc"), "/etc is outside executor.docker.allowed_mounts"),
    ],
)
def test_a_task_that_cannot_start_says_why(contained, arguments, words):
    task_id = contained.submit("--retries", "0", *arguments, "--", "true")
    contained.dgpu("wait", task_id)
    task = contained.task(task_id)
    assert task["status"] == "failed"
    assert words in task["error"]


def test_an_image_waits_for_a_node_whose_engine_answers(contained):
    """The node says so by a label, and `why` names it."""
    contained.podman.kill()
    try:
        eventually(lambda: "dgpu.containers" not in str(contained.json("nodes")), "the label to vanish")
        refused = contained.dgpu("submit", "--image", IMAGE, "--", "true")
        assert refused.code == 6, refused
        assert "dgpu.containers=docker" in refused.err
    finally:
        contained.podman.start()
    eventually(lambda: "dgpu.containers" in str(contained.json("nodes")), "the label to return")
    assert contained.dgpu("run", "--image", IMAGE, "--", "true").code == 0


def test_output_files_and_ports_of_a_container(contained):
    program = "echo to the file; echo to the other >&2; echo page > index.html; exec httpd -f -p 127.0.0.1:$DGPU_PORT"
    task_id = contained.submit(
        *("--image", IMAGE, "--output", "%x.out", "--error", "err", "--name", "web", "--port", "8888"),
        *("--", "sh", "-c", program),
    )
    contained.started(task_id)
    url = contained.good("link", task_id).out.strip()
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    eventually(lambda: page(host, port) == "page\n", "the page of the container")
    contained.good("cancel", task_id)
    last_container(contained)
    for name, text in (("web.out", "to the file\n"), ("err", "to the other\n")):
        contained.good("fetch", task_id, name, "--into", contained.home)
        assert (contained.home / name).read_text() == text
    refused = contained.dgpu("submit", "--image", IMAGE, "--output", "/etc/x", "--", "true")
    assert (refused.code, "relative path" in refused.err) == (2, True), refused


def page(host, port):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/index.html", headers={"Host": f"{host}:{port}"})
        return connection.getresponse().read().decode()
