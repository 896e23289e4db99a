"""Gangs, arrays, dependencies and held tasks at the command line, with real processes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from .conftest import Site, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_nodes():
    place = Site()
    place.up("--fake", "2xV100", "--nodes", "2")
    yield place
    place.close()


PLACE = (
    "echo $RANK/$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT node $NODE_RANK local $LOCAL_RANK try $DGPU_ATTEMPT"
)


def test_a_gang_runs_on_all_its_nodes_and_each_rank_has_its_output(two_nodes):
    task_id = two_nodes.submit("--nodes", "2", "-G", "2", PLACE)
    two_nodes.good("wait", task_id)
    first = two_nodes.good("logs", task_id).out.split()
    second = two_nodes.good("logs", task_id, "--rank", "1").out.split()
    assert (first[0], second[0]) == ("0/2", "1/2")
    assert first[2] == second[2]  # one address and port for all
    assert first[-1] == second[-1] == "1"
    shown = two_nodes.task(task_id)
    assert len(set(shown["allocated_gpus"])) == 4
    assert two_nodes.dgpu("logs", task_id, "--rank", "2").code == 5


def test_each_node_has_a_file_with_all_nodes_for_launchers(two_nodes):
    task_id = two_nodes.submit("--nodes", "2", "-G", "2", "cat $DGPU_HOSTFILE; echo $PET_NPROC_PER_NODE")
    two_nodes.good("wait", task_id)
    for rank in ("0", "1"):
        lines = two_nodes.good("logs", task_id, "--rank", rank).out.splitlines()
        assert [line.rpartition(" ")[2] for line in lines] == ["slots=2", "slots=2", "2"]


def test_torchrun_needs_no_options(two_nodes):
    """The example, as its first lines say. Gloo: the simulated nodes have no real GPUs."""
    python = os.environ.get("DGPU_TEST_TORCH_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip("torch is not installed; DGPU_TEST_TORCH_PYTHON names a Python that has it")
    example = pathlib.Path(__file__).parents[2] / "examples" / "multi_node.py"
    command = [python, "-m", "torch.distributed.run", str(example)]  # what `torchrun` is
    task_id = two_nodes.submit("--nodes", "2", "-G", "2", "--", *command)
    two_nodes.good("wait", task_id)
    said = "".join(two_nodes.good("logs", task_id, "--rank", rank).out for rank in ("0", "1"))
    assert sorted(re.findall(r"rank (\d) of 4: loss 0\.0000", said)) == ["0", "1", "2", "3"], said


def test_one_rank_fails_and_the_others_are_stopped(two_nodes):
    script = 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 600'
    answer = two_nodes.dgpu("submit", "--nodes", "2", "--wait", "--", "sh", "-c", script)
    assert answer.code == 7, answer
    shown = two_nodes.task(answer.out.strip())
    assert (shown["status"], shown["error"]) == ("failed", "rank 1: exited with code 7")


def test_a_cancelled_gang_ends_on_all_nodes(two_nodes):
    task_id = two_nodes.submit("--nodes", "2", "--", "sleep", "600")
    two_nodes.started(task_id)
    two_nodes.good("cancel", task_id)
    two_nodes.dgpu("wait", task_id)
    assert two_nodes.task(task_id)["status"] == "cancelled"
    assert two_nodes.json("gpus")["busy"] == 0


def test_an_array_and_the_task_that_waits_for_all_of_it(two_nodes):
    array = two_nodes.submit("--array", "1,5-6%1", "echo index $DGPU_ARRAY_INDEX")
    last = two_nodes.submit("--after", array, "echo after")
    two_nodes.good("wait", array, last)
    ids = [f"{array}_{index}" for index in (1, 5, 6)]
    printed = [two_nodes.good("logs", task_id).out.strip() for task_id in ids]
    assert printed == ["index 1", "index 5", "index 6"]
    ends = [two_nodes.task(task_id)["finished_at"] for task_id in ids]
    assert two_nodes.task(last)["started_at"] >= max(ends)


def test_hold_release_priority_and_a_dependency_that_fails(two_nodes):
    held = two_nodes.submit("--hold", "--", "sh", "-c", "exit 1")
    behind = two_nodes.submit("--after", f"{held}:ok", "--", "true")
    cleanup = two_nodes.submit("--after", f"{held}:failed", "--", "true")
    assert "held" in two_nodes.good("why", held).out
    assert held in two_nodes.good("why", behind).out
    two_nodes.good("priority", held, "high")
    assert two_nodes.task(held)["priority"] == 80
    two_nodes.good("release", held)
    two_nodes.good("wait", cleanup)
    eventually(lambda: two_nodes.task(behind)["reason"] == "dependency_failed", "the chain to end")
    assert two_nodes.dgpu("hold", held).code == 6
    assert two_nodes.dgpu("submit", "--after", "99999", "--", "true").code == 6
    assert two_nodes.dgpu("submit", "--after", "1:maybe", "--", "true").code == 2
    assert two_nodes.dgpu("submit", "--array", "0-9999999", "--", "true").code == 2
