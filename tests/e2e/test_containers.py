"""Tasks in containers, as a person runs them: a real scheduler, a real agent, a real engine."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import pytest

from integration.agent.podman import IMAGE, podman  # noqa: F401 - a fixture

from .conftest import Site, eventually

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
