"""How an agent starts a script, and which variables of Slurm it sets."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest

from dgpu.agent.frames import SECRETS_PROTOCOL
from dgpu.agent.run.orders import spawn_order
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId


def order_of(detail, *, protocol=SECRETS_PROTOCOL, **facts):
    order = RunOrder(
        lease_id=LeaseId(1), task_id=TaskId(9), attempt=2, detail=json.dumps(detail).encode(), **facts
    )
    return spawn_order(
        order,
        node_id=NodeId("n1"),
        keeper_id="k",
        surroundings={"SLURM_JOB_ID": "foreign"},
        grace_ms=1,
        start_ms=1,
        keeper_protocol=protocol,
    )


@pytest.mark.parametrize(
    ("script", "out"),
    [
        ('#!/bin/sh\necho "$1|$2|${0##*/}"\n', "two words|$x|.script\n"),
        ("#! /bin/sh -eu\nfalse\necho not here", ""),
        ("#!/usr/bin/env python3\nimport sys; print('é', sys.argv[1:])", "é ['two words', '$x']\n"),
    ],
)
def test_the_text_runs_as_a_file_with_its_interpreter(tmp_path, script, out) -> None:
    asked = order_of({"command": ["job.sh", "two words", "$x"], "script": script})
    ((name, content),) = asked["secrets"].items()
    (tmp_path / name).write_bytes(base64.b64decode(content))
    env = {"DGPU_SECRETS_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"}
    ran = subprocess.run(asked["argv"], env=env, capture_output=True, check=False)
    assert ran.stdout.decode() == out, ran


def test_an_older_keeper_does_not_start_it_without_its_file() -> None:
    with pytest.raises(ValueError, match="older"):
        order_of({"command": ["a"], "script": "#!/bin/sh\n"}, protocol=SECRETS_PROTOCOL - 1)


def test_variables_of_slurm_say_what_the_order_says() -> None:
    env = order_of(
        {"command": ["a"], "slurm_env": True, "env": {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}},
        gpu_ids=(GpuId("a"), GpuId("b")),
        cpus_milli=8_000,
        ram_mb=512,
        env={
            "NODE_RANK": "1", "WORLD_SIZE": "2",
            "DGPU_ARRAY_ID": "task-7", "DGPU_ARRAY_INDEX": "3", "DGPU_ARRAY_COUNT": "5",
        },
        secret_files={".hostfile": b"10.0.0.1 slots=2\n10.0.0.2 slots=2\n"},
    )["env"]  # fmt: skip
    expected = {
        "JOB_ID": "9", "JOBID": "9", "NODEID": "1", "PROCID": "1", "LOCALID": "0", "NNODES": "2", "JOB_NUM_NODES": "2",
        "JOB_NODELIST": "10.0.0.1,10.0.0.2", "GPUS_ON_NODE": "2", "RESTART_COUNT": "1", "CPUS_ON_NODE": "8",
        "MEM_PER_NODE": "512", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "3", "ARRAY_TASK_COUNT": "5", "NTASKS": "4",
    }  # fmt: skip
    assert {name: env[f"SLURM_{name}"] for name in expected} == expected


def test_a_task_on_one_node_has_its_node_and_no_array() -> None:
    env = order_of({"command": ["a"], "slurm_env": True})["env"]
    assert (env["SLURM_JOB_NODELIST"], env["SLURM_NNODES"], env["SLURM_NODEID"]) == ("n1", "1", "0")
    assert not {name for name in env if name.startswith("SLURM_ARRAY")}
    assert not {name for name in order_of({"command": ["a"]})["env"] if name.startswith("SLURM_NODE")}
