"""A task that the core has forgotten is answered as before: no field is lost on the way to the history."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from dgpu.core.commands import RegisterNode, RunPass
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import CONTAINERS_LABEL
from dgpu.wire.answers import TaskAnswer
from rest_world import RestWorld

# A task that is over does not wait and is not about to be cancelled.
ONLY_LIVE = {"after", "cancelling", "held", "waiting", "blockers", "reservation", "worker", "progress"}
ONLY_ALONE = {"attempts", "own_workdir", "array", "usage"}  # not in lists

PROJECT = b"{}"  # any bytes
UPLOAD = hashlib.sha256(PROJECT).hexdigest()
TASKS = (
    {
        "name": "everything",
        "command": ["python", "train.py"],
        "pool": "online",
        "priority": 83,
        "gpu_count": 1,
        "gpu_model": ["V100"],
        "gpu_memory_mb": 2_048,
        "gpu_share": 0.5,
        "constraints": {"zone": "a"},
        "cpus": 1.5,
        "ram_mb": 512,
        "env": {"TOKEN": "s3cret", "HOME": "/root"},
        "workdir": "/data",
        "timeout_seconds": 60,
        "labels": {"user": "ann"},
        "model_name": "orb",
        "task_type": "stability",
        "structure_n_atoms": 12,
        "signal": "USR1@30",
        "grace_seconds": 9,
        "begin_at": "2020-01-01T00:00:00Z",
    },
    {
        "name": "contained",
        "gpu_count": 1,
        "image": "train:1",
        "mounts": ["/data:/in:ro"],
        "read_only_root": True,
        "shm_mb": 8,
        "secrets": ["KEY"],
    },
    {"name": "uploaded", "upload": UPLOAD, "notify": ["fail=KEY"], "ports": [8888]},
    {"name": "gang", "nodes": 2, "gpu_count": 1, "priority": "low"},
    {
        "name": "scripted",
        "command": ["a.sh", "1"],
        "script": "#!/bin/sh\necho é",
        "slurm_env": True,
        "output_file": "%j.out",
        "error_file": "e",
    },
    {"name": "array", "grid": {"lr": "0-5"}, "array": "3-5%2", "gpu_count": 1},
    {"name": "retried", "gpu_count": 1, "max_retries": 1, "restart": "on-failure", "terminal": True},
    {"name": "call", "entrypoint": "train:step", "command": None},  # with a worker, which is a task, too
    {"name": "allocation", "allocation": True, "gpu_count": 1, "command": None},
)


def register(world: RestWorld, name: str) -> None:
    cards = tuple(
        Gpu(id=GpuId(f"GPU-{name}-{i}"), node_id=NodeId(name), index=i, model="V100", memory_mb=32_768)
        for i in range(4)
    )
    world.execute(
        RegisterNode(
            node_id=NodeId(name),
            boot_id="boot",
            cpus_milli=64_000,
            ram_mb=262_144,
            gpus=cards,
            labels={"zone": "a", CONTAINERS_LABEL: "docker"},
            work_dir="/var/tasks",
        )
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of each task: alone, in a list and found by a search; before it was forgotten, and after."""
    settings = Settings(keep_finished=0, keep_finished_ms=0, retry_delay_ms=0)
    with RestWorld(tmp_path_factory.mktemp("past"), settings=settings) as world:
        for name in ("n1", "n2"):
            register(world, name)
        world.ask("PUT", "/api/v1/tenants/default/secrets/KEY", {"value": "xyzzy"})
        world.ask("PUT", f"/api/v1/uploads/{UPLOAD}?tenant=default", {})
        first = [world.submit(**task) for task in TASKS]
        for number in first[-2:]:
            world.ask("DELETE", f"/api/v1/tasks/{number}")
        while world.finish_running(exit_code=1, usage=AttemptUsage(gpu_samples=3, gpu_percent=40, cpu_ms=7)):
            world.execute(RunPass())
        ids = [f"task-{number}" for number in world.read(lambda state: sorted(state.tasks))]
        live = ask_all(world, ids)
        world.forget()
        assert world.read(lambda state: len(state.tasks)) == 0
        yield live, ask_all(world, ids)


def ask_all(world: RestWorld, ids: list[str]) -> dict[str, list[dict]]:
    return {
        "alone": [world.ask("GET", f"/api/v1/tasks/{task_id}").body for task_id in ids],
        "list": world.ask("GET", "/api/v1/tasks").body["tasks"],
        "search": world.ask("GET", "/api/v1/tasks?q=default").body["tasks"],
    }


@pytest.mark.parametrize("way", ["alone", "list", "search"])
@pytest.mark.parametrize("field", TaskAnswer.__struct_fields__)
def test_a_field_is_the_same_once_the_task_is_forgotten(answers, way, field) -> None:
    live, past = ({task["task_id"]: task[field] for task in told[way]} for told in answers)
    assert len(live) == len(TASKS) + 3, "an array of three, and a worker"
    assert past == live


def test_these_tasks_have_a_value_in_every_field(answers) -> None:
    """Fails for a new field until a task of this module sets it: two defaults are equal without being kept."""
    live, _ = answers
    for way, left_out in (("alone", ONLY_LIVE), ("list", ONLY_LIVE | ONLY_ALONE)):
        unset = {
            field.name
            for field in msgspec.structs.fields(TaskAnswer)
            if not field.required and all(task[field.name] == default_of(field) for task in live[way])
        }
        assert unset == left_out


def default_of(field: msgspec.structs.FieldInfo) -> object:
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return msgspec.to_builtins(made)
