"""srun: in a task, starts its processes on this node; elsewhere, submits a command and shows its output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from dgpu.cli.conversation import require_terminal
from dgpu.cli.failures import CliFailure, note
from dgpu.cli.jobs.directives import Given, Options, Takes
from dgpu.cli.jobs.script import slurm_variables
from dgpu.cli.jobs.slurm import translate
from dgpu.cli.jobs.slurm_options import OTHER_NAMES, SBATCH_TAKES, SHORT
from dgpu.cli.run import follow_at_terminal, follow_task
from dgpu.cli.slurm.reading import refuse, scheduler
from dgpu.cli.submission import described
from dgpu.cli.uploading import with_uploads

_FLAG, _VALUE, _MAYBE = Takes(False), Takes(True), Takes(True, optional=True)
# Without effect: dgpu's srun adds no binding, no buffer and no network of its own.
_IGNORED = {
    "accel-bind": _VALUE, "disable-status": _FLAG, "exact": _FLAG, "exclusive": _MAYBE, "kill-on-bad-exit": _MAYBE,
    "mpi": _VALUE, "overlap": _FLAG, "quit-on-interrupt": _FLAG, "unbuffered": _FLAG, "threads": _VALUE,
}  # fmt: skip
_OWN = {"label": _FLAG, "pty": _FLAG, "jobid": _VALUE}
_OPTIONS = Options(
    {**SBATCH_TAKES, **_IGNORED, **_OWN},
    {
        **SHORT,
        "l": "label",
        "u": "unbuffered",
        "K": "kill-on-bad-exit",
        "X": "disable-status",
        "T": "threads",
    },
    OTHER_NAMES,
)
_SIZES = ("ntasks", "ntasks-per-node", "nodes", "gpus-per-task", "cpus-per-task", "cpus-per-gpu")
_DEMANDS = ("gres", "gpus", "gpus-per-node", "mem", "mem-per-cpu", "mem-per-gpu", "time")
_BINDINGS = ("cpu-bind", "gpu-bind", "mem-bind", "distribution", "hint", "threads-per-core")
_OTHERS = ("export", "job-name", "chdir", "label", "jobid", "open-mode", "pty", "quiet", "verbose")
_OF_A_STEP = frozenset((*_SIZES, *_DEMANDS, *_BINDINGS, *_OTHERS))


def run(arguments: Sequence[str]) -> int:
    given, words, faults = _OPTIONS.read_arguments(arguments)
    refuse(faults)
    if not words:
        raise CliFailure("a command is missing; for example: srun python train.py")
    options = {option.name: option for option in given if option.name not in _IGNORED}
    if "DGPU_TASK_ID" in os.environ and "SLURM_JOB_ID" in os.environ:
        return _step(options, words)
    return _submitted(options, words)


def _submitted(options: Mapping[str, Given], words: Sequence[str]) -> int:
    found = translate(option for option in options.values() if option.name in SBATCH_TAKES)
    refuse(found.faults)
    if int(found.variables["SLURM_NTASKS"]) > found.given.get("nodes", 1):
        raise CliFailure(
            "outside of a job, srun starts one process per node; use sbatch with a script that calls srun"
        )
    for fault in found.notes:
        note(f"srun: {fault.message}")
    surroundings = {} if found.given.keys() & {"clean_env", "env_all", "image"} else {"env_all": True}
    task = described({**found.given, **surroundings}, ["srun", *words])
    task = {"name": os.path.basename(words[0]), **task, "command": list(words), "slurm_env": True}  # noqa: PTH119
    task["env"] = {**task.get("env", {}), **found.variables, **slurm_variables(task)}
    if "pty" in options:
        require_terminal("Leave out --pty")
        return follow_at_terminal(scheduler(), task)
    client = scheduler()
    return follow_task(client, client.submit(**with_uploads(client, [task])[0]).task_id)


def _step(options: Mapping[str, Given], words: Sequence[str]) -> int:
    """The script runs on every node of the task, so each srun starts the processes of its own node."""
    others = [option.written for name, option in options.items() if name not in _OF_A_STEP]
    if others:
        raise CliFailure(f"{', '.join(others)}: not supported in a job")
    nodes = _number(options, "nodes", int(os.environ.get("SLURM_NNODES", "1")))
    if nodes != int(os.environ.get("SLURM_NNODES", "1")):
        raise CliFailure(
            f"--nodes {nodes}: dgpu's srun starts processes on every node of the task, not on some"
        )
    per_node = _number(options, "ntasks-per-node", 0)
    total = _number(options, "ntasks", per_node * nodes or int(os.environ.get("SLURM_NTASKS", str(nodes))))
    if total % nodes:
        raise CliFailure(f"--ntasks {total}: cannot be divided by {nodes} nodes")
    local = total // nodes
    gpus = _number(options, "gpus-per-task", 0)
    environments = [_environment(place, local, total, gpus) for place in range(local)]
    if "chdir" in options:
        os.chdir(options["chdir"].value or ".")
    sys.stdout.flush()
    if local == 1 and "label" not in options:
        try:
            os.execvpe(words[0], list(words), environments[0])  # noqa: S606  the user's own command
        except OSError as error:
            raise CliFailure(f"{words[0]}: {error.strerror}") from None
    return _run_all(words, environments, labels="label" in options)


def _number(options: Mapping[str, Given], name: str, default: int) -> int:
    option = options.get(name)
    if option is None:
        return default
    text = (option.value or "").rpartition(":")[2]
    if not text.isdecimal() or not int(text):
        raise CliFailure(f"{option.written}: expected a whole number above 0, got {option.value!r}")
    return int(text)


def _environment(place: int, local: int, total: int, gpus: int) -> dict[str, str]:
    rank = int(os.environ.get("SLURM_NODEID", "0")) * local + place
    env = {
        **os.environ,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(place),
        "SLURM_NTASKS": str(total),
        "SLURM_NPROCS": str(total),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
    }
    if "RANK" in env:  # of a task on several nodes: there they count nodes
        env |= {"RANK": str(rank), "LOCAL_RANK": str(place), "WORLD_SIZE": str(total)}
    if gpus:
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        if len(visible) < gpus * local:
            raise CliFailure(f"--gpus-per-task {gpus}: the task has {len(visible)} GPUs on this node")
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[place * gpus : (place + 1) * gpus])
    return env


def _run_all(words: Sequence[str], environments: Sequence[dict[str, str]], *, labels: bool) -> int:
    """The largest exit code. Signals of a stop reach the processes by themselves: they are of the same task."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for env in environments:
            command = list(words)
            if labels:
                command = [
                    "/bin/sh",
                    "-c",
                    f'"$@" 2>&1 | sed -u "s/^/{env["SLURM_PROCID"]}: /"',
                    "sh",
                    *words,
                ]
            started.append(subprocess.Popen(command, env=env))
    except OSError as error:
        for process in started:
            process.kill()
        raise CliFailure(f"{words[0]}: {error.strerror}") from None
    codes = [process.wait() for process in started]
    return max(code if code >= 0 else 128 - code for code in codes)
