"""#DGPU lines: the options of `dgpu submit` that describe a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

from dgpu.cli import submission
from dgpu.cli.jobs.directives import DirectiveLine, Fault, Given, Options, Takes
from dgpu.cli.lightness import lighten


def own_options() -> Options:
    takes: dict[str, Takes] = {}
    short: dict[str, str] = {}
    for param in submission.task_parameters():
        longs = [name for name in param.opts if name.startswith("--")]
        # A bare --upload means the current directory.
        value = Takes(not getattr(param, "is_flag", False), optional=param.name == "upload")
        takes |= {name.removeprefix("--"): value for name in longs}
        short |= {name[1]: longs[0].removeprefix("--") for name in param.opts if not name.startswith("--")}
    return Options(takes, short)


def read_own(lines: Iterable[DirectiveLine]) -> tuple[dict[str, Any], list[Fault]]:
    """The options as the command line keeps them, and every fault."""
    options, faults = own_options().read(lines)
    command = TyperCommand("#DGPU", params=list(submission.task_parameters()), callback=None)
    lighten(command)
    given: dict[str, Any] = {}
    for option in options:
        try:
            kept = _kept(command, option)
            submission.check(kept)
        except typer.TyperException as error:
            faults.append(option.value_fault(getattr(error, "message", str(error))))
            continue
        for name, value in kept.items():
            given[name] = [*given.get(name, []), *value] if isinstance(value, list) else value
    return given, faults


def _kept(command: TyperCommand, option: Given) -> dict[str, Any]:
    words = [f"--{option.name}"] if option.value is None else [f"--{option.name}", option.value]
    with command.make_context("#DGPU", words) as ctx:
        return submission.given_options(ctx)  # type: ignore[arg-type]  # typer wraps its context only in callbacks
