"""salloc: holds GPUs while a command or a shell runs here."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgpu.cli.connection import patiently, poll
from dgpu.cli.failures import CliFailure, note
from dgpu.cli.jobs.slurm import translate
from dgpu.cli.jobs.slurm_options import SBATCH
from dgpu.cli.slurm.reading import refuse, scheduler
from dgpu.cli.submission import described

if TYPE_CHECKING:
    from dgpu.wire.answers import TaskAnswer


def run(arguments: Sequence[str]) -> int:
    given, words, faults = SBATCH.read_arguments(arguments)
    refuse(faults)
    found = translate(given)
    refuse(found.faults)
    for fault in found.notes:
        note(f"salloc: {fault.message}")
    task = {"name": "interactive", **described(found.given, ()), "allocation": True}
    task = {name: value for name, value in task.items() if name not in {"env", "workdir"}}  # it runs nothing
    client = scheduler()
    task_id = client.submit(**task).task_id
    number = task_id.removeprefix("task-")
    try:
        held = poll(client, task_id, lambda task: task.status != "pending", _Notes(number).see)
        if held.status != "running":
            raise CliFailure(f"job {number} {held.status}: {held.error or held.reason}")
        note(f"salloc: Granted job allocation {number}")
        env = {**os.environ, **found.variables, **_variables(held)}
        return subprocess.run(words or [os.environ.get("SHELL", "/bin/sh")], env=env, check=False).returncode
    except OSError as error:
        raise CliFailure(f"{words[0] if words else 'SHELL'}: {error.strerror}") from None
    finally:
        note(f"salloc: Relinquishing job allocation {number}")
        patiently(lambda: client.cancel(task_id))


class _Notes:
    def __init__(self, number: str) -> None:
        self._number = number
        self._told = False

    def see(self, task: TaskAnswer) -> None:
        if task.status == "pending" and not self._told:
            self._told = True
            note(f"salloc: Pending job allocation {self._number}: {task.waiting}")


def _variables(task: TaskAnswer) -> dict[str, str]:
    number, nodes = task.task_id.removeprefix("task-"), ",".join(task.allocated_nodes)
    found = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_NNODES": str(task.nodes),
        "SLURM_JOB_NUM_NODES": str(task.nodes),
    }
    if task.allocated_nodes == [platform.node()]:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(task.allocated_gpus)
    elif task.allocated_gpus:
        note(f"salloc: The GPUs are on {nodes}; the command runs here.")
    return found
