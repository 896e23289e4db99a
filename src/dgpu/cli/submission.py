"""The flags of `submit` and `run`, and the task they describe."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import (
    parse_after,
    parse_begin,
    parse_command,
    parse_duration,
    parse_env,
    parse_grid,
    parse_labels,
    parse_memory_mb,
    parse_output_file,
    parse_plain_memory_mb,
    parse_ports,
    parse_priority,
    parse_secrets,
    read_env_file,
    unfilled_variable,
)
from dgpu.cli.failures import note
from dgpu.cli.flags import make_value_optional, parameters_of
from dgpu.client.surroundings import BadSettings, all_variables, current_directory, surrounded

if TYPE_CHECKING:
    from typer._click.core import Parameter

# The first word of CMD ends our flags: `dgpu run -G 2 python train.py --lr 3` gives --lr to train.py.
CONTEXT = {"allow_interspersed_args": False}

Command = Annotated[list[str] | None, typer.Argument(metavar="CMD", show_default=False)]
_KEPT = "dgpu.task"


def _keep(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    if value is not None and value is not False and value != []:
        ctx.meta.setdefault(_KEPT, {})[param.name] = value


def _option(*names: str, metavar: str | None = None, help: str = "") -> Any:  # noqa: A002  typer's own word
    return typer.Option(*names, metavar=metavar, help=help, callback=_keep, expose_value=False)


def describing(
    gpu_count: Annotated[int | None, _option("--gpus", "-G", metavar="N", help="GPUs per node. [1]")] = None,
    gpu_model: Annotated[
        list[str] | None,
        _option(
            "--gpu-type", metavar="M", help="GPU model by words: a100; A100|H100 or repeated: any of them."
        ),
    ] = None,
    gpu_memory_mb: Annotated[
        str | None, _option("--gpu-mem", "--mem", metavar="MB", help="Memory per GPU: 8G or 8000.")
    ] = None,
    shared: Annotated[
        bool, _option("--shared", help="Share a GPU with other tasks, within --gpu-mem.")
    ] = False,
    gpu_share: Annotated[
        float | None, _option("--share", metavar="0.001-1", help="A part of a GPU, shared with other tasks.")
    ] = None,
    constraints: Annotated[
        list[str] | None,
        _option("--constraint", metavar="LABEL=V", help="Of nodes: zone=a, disk=ssd|nvme, rack!=7, node=n1."),
    ] = None,
    timeout_seconds: Annotated[
        str | None, _option("--timeout", "-t", metavar="T", help="90s, 15m, 2h, 1d, 2:00:00, 1-12:00:00.")
    ] = None,
    name: Annotated[str | None, _option("--name", "-J", metavar="NAME")] = None,
    tenant_id: Annotated[str | None, _option("--tenant", "-A", metavar="T", help="The tenant.")] = None,
    priority: Annotated[
        str | None, _option("--priority", "-p", metavar="P", help="low, normal, high, critical or 0 to 100.")
    ] = None,
    pool: Annotated[str | None, _option("--pool", metavar="online|batch")] = None,
    model_name: Annotated[str | None, _option("--model", metavar="NAME", help="Name of its model.")] = None,
    nodes: Annotated[int | None, _option("--nodes", metavar="N", help="Number of nodes. [1]")] = None,
    array: Annotated[str | None, _option("--array", metavar="0-9%3", help="Indexes, 3 at once.")] = None,
    grid: Annotated[
        list[str] | None,
        _option(
            "--grid", metavar="K=V,V", help="All combinations of values, as an array: lr=0.1,0.01 seed=0-4."
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        _option("--after", metavar="ID[:ok|any|failed]", help="Start after this task; repeated: after all."),
    ] = None,
    held: Annotated[bool, _option("--hold", help="Hold the task until it is released.")] = False,
    max_retries: Annotated[
        int | None, _option("--retries", metavar="N", help="After node failures. [3]")
    ] = None,
    restart: Annotated[str | None, _option("--restart", metavar="never|on-failure|always")] = None,
) -> None:
    """Carries the options with the server's names; never called."""


def lasting(
    signal: Annotated[
        str | None,
        _option("--signal", metavar="USR1@300", help="Signal 300 s before the time limit ends it."),
    ] = None,
    grace_seconds: Annotated[
        str | None, _option("--grace", metavar="T", help="From TERM to KILL, at every stop: 60s.")
    ] = None,
    begin_at: Annotated[
        str | None, _option("--begin", metavar="TIME", help="Not before: 22:00, +2h, 2026-07-30T22:00.")
    ] = None,
    notify: Annotated[
        list[str] | None,
        _option("--notify", metavar="[EVENTS=]NAME", help="Tell a target or secret: end,start,fail=slack."),
    ] = None,
) -> None:
    """The same, for the begin and the end of a task."""


def surrounding(
    env: Annotated[
        list[str] | None, _option("--env", "-e", metavar="K=V", help="K alone: its current value.")
    ] = None,
    env_file: Annotated[
        list[str] | None, _option("--env-file", metavar="FILE", help="Variables from a file of lines K=V.")
    ] = None,
    env_all: Annotated[bool, _option("--env-all", help="Send all variables of the shell.")] = False,
    secrets: Annotated[
        list[str] | None,
        _option("--secret", metavar="NAME[=VAR]", help="As a variable; NAME:file or NAME:file=F: as a file."),
    ] = None,
    labels: Annotated[list[str] | None, _option("--label", metavar="K=V")] = None,
    workdir: Annotated[str | None, _option("--workdir", "-w", metavar="D", help="[here]")] = None,
    upload: Annotated[
        str | None,
        _option(
            "--upload",
            metavar="[DIR]",
            help="Run in a new directory with a copy of this project. [the current one]",
        ),
    ] = None,
    ports: Annotated[
        list[str] | None,
        _option("--port", metavar="N", help="The program listens on $DGPU_PORT; see dgpu forward."),
    ] = None,
    cpus: Annotated[
        float | None,
        _option("--cpus", metavar="N", help="CPUs; 0: not counted. [1 without GPUs, else not counted]"),
    ] = None,
    ram_mb: Annotated[str | None, _option("--ram", metavar="MB", help="Main memory: 16G or 16000.")] = None,
    clean_env: Annotated[
        bool, _option("--clean-env", help="Send neither the directory nor variables of the shell.")
    ] = False,
) -> None:
    """The same, for a task's surroundings."""


def copying(
    output_file: Annotated[
        str | None,
        _option(
            "--output",
            metavar="FILE",
            help="Also write the output to this file of the node; %j id, %A_%a array, %x name, %N node.",
        ),
    ] = None,
    error_file: Annotated[
        str | None, _option("--error", metavar="FILE", help="The same, for stderr. [the file of --output]")
    ] = None,
) -> None:
    """The same, for copies of a task's output."""


def containing(
    image: Annotated[
        str | None, _option("--image", metavar="IMAGE", help="Run in a container of this image.")
    ] = None,
    image_secret: Annotated[
        str | None,
        _option("--image-secret", metavar="NAME", help="The secret with USER:PASSWORD of the registry."),
    ] = None,
    mounts: Annotated[
        list[str] | None,
        _option("--mount", metavar="SRC:DST[:ro]", help="A directory of the node, in the container."),
    ] = None,
    read_only_root: Annotated[
        bool, _option("--read-only-root", help="The files of the image cannot be changed.")
    ] = False,
    shm_mb: Annotated[
        str | None, _option("--shm", metavar="MB", help="Shared memory of the container: 1000 or 8G.")
    ] = None,
) -> None:
    """The same, about the container of a task."""


@functools.cache
def task_parameters() -> tuple[Parameter, ...]:
    parts = (describing, lasting, surrounding, copying, containing)
    found = tuple(parameter for part in parts for parameter in parameters_of(part))
    for parameter in found:
        if parameter.name == "upload":
            make_value_optional(parameter, ".", lambda text: os.path.isdir(text))  # noqa: PLW0108,PTH112
    return found


# The scheduler refuses these, with its reason. The help of these verbs leaves them out.
_OF_CONTAINERS = frozenset({"image", "image_secret", "mounts", "read_only_root", "shm_mb"})
_OF_MANY = frozenset({"nodes", "array", "grid", "restart"})
_HIDDEN = {
    "call": _OF_CONTAINERS | _OF_MANY | {"signal", "ports", "output_file", "error_file"},
    "serve": _OF_CONTAINERS | _OF_MANY | {"after", "begin_at", "held"},
}


def parameters_of_verb(verb: str) -> list[Parameter]:
    hidden = _HIDDEN.get(verb, frozenset())
    found = [copy.copy(each) if each.name in hidden else each for each in task_parameters()]
    for parameter in found:
        if parameter.name in hidden:
            parameter.hidden = True  # type: ignore[attr-defined]
    return found


_READ: dict[str, Callable[[Any], Any]] = {
    "gpu_model": lambda models: models[0] if len(models) == 1 else models,
    "gpu_memory_mb": parse_plain_memory_mb,
    "ram_mb": parse_plain_memory_mb,
    "shm_mb": parse_memory_mb,
    "timeout_seconds": parse_duration,
    "grace_seconds": parse_duration,
    "begin_at": parse_begin,
    "priority": parse_priority,
    "after": parse_after,
    "labels": parse_labels,
    "grid": parse_grid,
    "env": parse_env,
    "secrets": parse_secrets,
    "ports": parse_ports,
    "output_file": parse_output_file,
}


def given_options(ctx: typer.Context) -> dict[str, Any]:
    """The options that describe a task, as texts."""
    return dict(ctx.meta.get(_KEPT, {}))


def check(given: Mapping[str, Any]) -> None:
    """Raises BadParameter for a value that cannot be read."""
    for name, value in given.items():
        if name in _READ:
            _READ[name](value)


def task_fields(ctx: typer.Context, command: Sequence[str]) -> dict[str, Any]:
    """The body of the request; for omitted options the server's defaults apply. A command that is a script with
    directives is sent with its text.
    """
    from dgpu.cli.jobs.script import script_in

    script = script_in(command)
    if script is None:
        task = described(given_options(ctx), command)
        if found := unfilled_variable(command):
            note(
                f"{found} is sent as it is: several words run without a shell. In one pair of single quotes, "
                "the whole command runs in the shell of the node, which fills it in."
            )
        return task
    script.tell()
    task = described(script.with_flags(given_options(ctx)), command)
    return script.in_task(task, command)


def described(given: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The task that these options describe, with the surroundings of the shell."""
    task = {"command": parse_command(command)} if command else {}
    return completing(given)(task)


def completing(given: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Adds these options, which win, and the surroundings of the shell to a task."""
    given = dict(given)
    clean = given.pop("clean_env", False)
    every, files = given.pop("env_all", False), given.pop("env_file", ())
    if clean and every:
        raise typer.BadParameter("--env-all and --clean-env exclude each other")
    flags = {name: _READ[name](value) if name in _READ else value for name, value in given.items()}
    if files or every:
        read = {name: value for path in files for name, value in read_env_file(path).items()}
        flags["env"] = (all_variables(os.environ) if every else {}) | read | flags.get("env", {})

    def complete(task: dict[str, Any]) -> dict[str, Any]:
        filled = {**task, **flags}
        for name in ("env", "labels"):
            if isinstance(task.get(name), dict) and name in flags:
                filled[name] = {**task[name], **flags[name]}
        if "workdir" in flags and "upload" in flags:
            raise typer.BadParameter("--upload and -w exclude each other: an upload gets a new directory")
        if isinstance(filled.get("workdir"), str):
            here = current_directory() or "/"
            filled["workdir"] = os.path.normpath(os.path.join(here, filled["workdir"]))  # noqa: PTH118
        return filled if clean else _surrounded(filled)

    return complete


def _surrounded(task: dict[str, Any]) -> dict[str, Any]:
    try:
        return surrounded(task)
    except BadSettings as error:
        raise typer.BadParameter(str(error)) from None
