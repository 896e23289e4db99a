"""The options of sbatch: which dgpu follows, which it only reports, and which stop a submit."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dgpu.cli.jobs.directives import Options, Takes

_VALUE = Takes(True)
_FLAG = Takes(False)
_MAYBE = Takes(True, optional=True)


class Effect(enum.Enum):
    USED = "used"  # becomes a field of the task; see `slurm`
    NOTED = "noted"  # without effect; the task does the same work
    STOPS = "stops"  # the task would do something else without it


class SlurmOption(NamedTuple):
    effect: Effect
    about: str  # USED: the option of dgpu. NOTED, STOPS: why, and the remedy
    short: str = ""
    takes: Takes = _VALUE


def _used(about: str, short: str = "", takes: Takes = _VALUE) -> SlurmOption:
    return SlurmOption(Effect.USED, about, short, takes)


def _noted(about: str, short: str = "", takes: Takes = _VALUE) -> SlurmOption:
    return SlurmOption(Effect.NOTED, about, short, takes)


def _stops(about: str, short: str = "", takes: Takes = _VALUE) -> SlurmOption:
    return SlurmOption(Effect.STOPS, about, short, takes)


_NO_BINDING = "dgpu binds no processes to CPUs or memory"
_MAIL = "no mail is sent; use #DGPU --notify end=NAME"
_ONE_CLUSTER = "dgpu has one cluster; choose a scheduler with --server"

SLURM_OPTIONS: dict[str, SlurmOption] = {
    # used
    "account": _used("--tenant", "A"),
    "array": _used("--array", "a"),
    "begin": _used("--begin", "b"),
    "chdir": _used("--workdir", "D"),
    "container-image": _used("--image"),
    "container-mounts": _used("--mount"),
    "cpus-per-gpu": _used("--cpus, times the GPUs"),
    "cpus-per-task": _used("--cpus, times the tasks of a node", "c"),
    "dependency": _used("--after; afterok, afterany, afternotok", "d"),
    "error": _used("--error", "e"),
    "exclude": _used("--constraint node!=...", "x"),
    "export": _used("ALL: --env-all; NONE: --clean-env; names: -e"),
    "gpu-bind": _used(
        "none and closest: only reported, every process sees all GPUs of its task; others stop"
    ),
    "gpus": _used("-G, divided by the nodes, and --gpu-type", "G"),
    "gpus-per-node": _used("-G and --gpu-type"),
    "gpus-per-task": _used("-G, times the tasks of a node"),
    "gres": _used("gpu:2 and gpu:a100:2: -G and --gpu-type"),
    "hold": _used("--hold", "H", _FLAG),
    "job-name": _used("--name", "J"),
    "mem": _used("--ram"),
    "mem-per-cpu": _used("--ram, times the CPUs"),
    "mem-per-gpu": _used("--ram, times the GPUs"),
    "no-requeue": _used("--retries 0", "", _FLAG),
    "nodelist": _used("--constraint node=...", "w"),
    "nodes": _used("--nodes; the script runs on each node", "N"),
    "ntasks": _used("srun starts this many processes", "n"),
    "ntasks-per-node": _used("the same, per node"),
    "output": _used("--output; of its patterns: %j %a %A %x %N %%", "o"),
    "partition": _used("--pool, if it is online or batch; else only reported", "p"),
    "priority": _used("--priority, 0 to 100"),
    "qos": _used("--priority, if it is low, normal, high or critical; else only reported", "q"),
    "signal": _used("--signal; with and without B:"),
    "time": _used("--timeout", "t"),
    # only reported
    "acctg-freq": _noted("dgpu samples at its own rate"),
    "comment": _noted("comments are not stored; use #DGPU --label note=..."),
    "contiguous": _noted("dgpu prefers near GPUs by itself", "", _FLAG),
    "cores-per-socket": _noted(_NO_BINDING),
    "cpu-bind": _noted(_NO_BINDING),
    "delay-boot": _noted("dgpu boots no nodes"),
    "distribution": _noted("dgpu starts one process per node", "m"),
    "get-user-env": _noted("use #DGPU --env-all for all variables", "", _MAYBE),
    "gres-flags": _noted("dgpu prefers near GPUs by itself"),
    "hint": _noted(_NO_BINDING),
    "ignore-pbs": _noted("dgpu reads no #PBS lines", "", _FLAG),
    "kill-on-invalid-dep": _noted("dgpu cancels such tasks by itself"),
    "mail-type": _noted(_MAIL),
    "mail-user": _noted(_MAIL),
    "mcs-label": _noted("dgpu has no such labels"),
    "mem-bind": _noted(_NO_BINDING),
    "network": _noted("dgpu sets no network options"),
    "nice": _noted("use #DGPU --priority 0 to 100", "", _MAYBE),
    "open-mode": _noted("the first attempt begins an output file anew, later ones continue it"),
    "overcommit": _noted(_NO_BINDING, "O", _FLAG),
    "oversubscribe": _noted("dgpu gives no whole nodes; GPUs are never shared without --shared", "s", _FLAG),
    "parsable": _noted("dgpu submit -o name prints only the id", "", _FLAG),
    "profile": _noted("dgpu measures every GPU by itself"),
    "propagate": _noted("limits of the shell are not sent", "", _MAYBE),
    "quiet": _noted("an option of the command line", "Q", _FLAG),
    "requeue": _noted("dgpu repeats a task after a failure of its node by itself", "", _FLAG),
    "sockets-per-node": _noted(_NO_BINDING),
    "spread-job": _noted("dgpu chooses the nodes", "", _FLAG),
    "switches": _noted("dgpu prefers near nodes by itself"),
    "threads-per-core": _noted(_NO_BINDING),
    "time-min": _noted("dgpu never shortens a time limit"),
    "use-min-nodes": _noted("dgpu uses exactly the number of nodes", "", _FLAG),
    "verbose": _noted("an option of the command line", "v", _FLAG),
    "wait": _noted("use dgpu submit --wait", "W", _FLAG),
    "wait-all-nodes": _noted("dgpu starts all nodes together by itself"),
    "wckey": _noted("use #DGPU --label wckey=..."),
    # change the meaning
    "batch": _stops("use #DGPU --constraint LABEL=VALUE"),
    "bb": _stops("dgpu has no burst buffers"),
    "bbf": _stops("dgpu has no burst buffers"),
    "cluster-constraint": _stops(_ONE_CLUSTER),
    "clusters": _stops(_ONE_CLUSTER, "M"),
    "constraint": _stops(
        "Slurm's features are not labels of dgpu; use #DGPU --constraint LABEL=VALUE, or --gpu-type for a GPU model",
        "C",
    ),
    "container": _stops("OCI bundles are not supported; use #DGPU --image IMAGE"),
    "container-workdir": _stops("use #DGPU --workdir"),
    "core-spec": _stops("dgpu reserves no cores", "S"),
    "cpu-freq": _stops("dgpu sets no clocks"),
    "deadline": _stops("dgpu has no deadlines; use --time"),
    "exclusive": _stops(
        "dgpu gives GPUs, not whole nodes; ask for all GPUs and CPUs of a node instead", "", _MAYBE
    ),
    "export-file": _stops("use #DGPU --env-file"),
    "extra": _stops("dgpu has no such field"),
    "extra-node-info": _stops("use --cpus-per-task", "B"),
    "gid": _stops("tasks run as the user of their tenant"),
    "gpu-freq": _stops("dgpu sets no clocks"),
    "gpus-per-socket": _stops("use --gpus-per-node"),
    "input": _stops("a task has no input; let it read a file", "i"),
    "licenses": _stops("dgpu counts no licenses", "L"),
    "mincpus": _stops("use --cpus-per-task"),
    "nodefile": _stops("use --nodelist", "F"),
    "ntasks-per-core": _stops("use --ntasks-per-node"),
    "ntasks-per-gpu": _stops("use --ntasks-per-node"),
    "ntasks-per-socket": _stops("use --ntasks-per-node"),
    "power": _stops("dgpu sets no power limits"),
    "prefer": _stops("use #DGPU --constraint LABEL=VALUE"),
    "reboot": _stops("dgpu reboots no nodes", "", _FLAG),
    "reservation": _stops("reservations of Slurm do not exist here"),
    "test-only": _stops("use dgpu submit --dry-run", "", _FLAG),
    "thread-spec": _stops("dgpu reserves no cores"),
    "tmp": _stops("dgpu does not count disk space"),
    "tres-per-task": _stops("use --gpus-per-task and --cpus-per-task"),
    "uid": _stops("tasks run as the user of their tenant"),
    "wrap": _stops("use dgpu submit with the command"),
}

OTHER_NAMES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpu_bind": "cpu-bind"}

SBATCH_TAKES = {name: option.takes for name, option in SLURM_OPTIONS.items()}
SHORT = {option.short: name for name, option in SLURM_OPTIONS.items() if option.short}
SBATCH = Options(SBATCH_TAKES, SHORT, OTHER_NAMES)
