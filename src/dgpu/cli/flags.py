"""The flags of all verbs, before or after the verb; the later one applies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from typer._click.core import Parameter

OUTPUTS = ("table", "wide", "json", "yaml", "name")
WATCH_SECONDS = 2.0


@dataclasses.dataclass(kw_only=True)
class Flags:
    """Filled while the arguments are parsed; read-only afterwards."""

    server: str | None = None
    token: str | None = None
    output: str = "table"
    watch: bool = False
    is_service: bool = False  # its errors go to a log with the full trace
    returns_task_code: bool = False  # so failures of dgpu itself need another code

    @property
    def is_table(self) -> bool:
        return self.output in {"table", "wide"}


def flags_of(ctx: typer.Context) -> Flags:
    return ctx.find_root().ensure_object(Flags)


def _keep_server(ctx: typer.Context, value: str | None) -> None:
    if value is not None:
        flags_of(ctx).server = value


def _keep_token(ctx: typer.Context, value: str | None) -> None:
    if value is not None:
        flags_of(ctx).token = value


def _keep_output(ctx: typer.Context, value: str | None) -> None:
    if value is None:
        return
    if value not in OUTPUTS:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(OUTPUTS)}")
    flags_of(ctx).output = value


def _keep_json(ctx: typer.Context, value: bool) -> None:
    if value:
        flags_of(ctx).output = "json"


def _keep_watch(ctx: typer.Context, value: bool) -> None:
    if value:
        flags_of(ctx).watch = True


def shared(
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            callback=_keep_server,
            expose_value=False,
            help="Address of the scheduler; several of them: URL,URL.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="TOKEN", callback=_keep_token, expose_value=False, help="Better: DGPU_TOKEN."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="|".join(OUTPUTS),
            callback=_keep_output,
            expose_value=False,
            help="Form.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", callback=_keep_json, expose_value=False, help="The same as -o json.")
    ] = False,
) -> None:
    """Carries the options; never called."""


def watching(
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", callback=_keep_watch, expose_value=False, help="Refresh every 2 s, until Ctrl-C."
        ),
    ] = False,
) -> None:
    """Carries the option; never called."""


@functools.cache
def shared_parameters() -> tuple[Parameter, ...]:
    return parameters_of(shared)


@functools.cache
def shared_parameters_of_tasks() -> tuple[Parameter, ...]:
    """For verbs that describe a task: there, --output is a file of the task, and only -o selects the output format."""
    found = parameters_of(shared)
    for parameter in found:
        if parameter.name == "output":
            parameter.opts = ["-o"]
    return found


@functools.cache
def watch_parameters() -> tuple[Parameter, ...]:
    return parameters_of(watching)


def parameters_of(function: object) -> tuple[Parameter, ...]:
    app = typer.Typer(add_completion=False)
    app.command()(function)  # type: ignore[type-var]
    return tuple(typer.main.get_command(app).params)


def make_value_optional(parameter: Parameter, default: str, is_value: Callable[[str], bool]) -> None:
    """`--name` alone means `--name=default`, unless the next word is a value of it. typer has no such option.

    A single word between `--name` and `--` is always the value: a command begins after `--`. A wrong value is then
    refused, and is not taken for the command.
    """
    (name,) = parameter.opts
    add = parameter.add_to_parser

    def add_to_parser(parser: Any, ctx: Any) -> None:
        add(parser, ctx)
        match = parser._match_long_opt  # noqa: SLF001 - there is no public place

        def match_long_opt(opt: str, explicit_value: str | None, state: Any) -> None:
            if opt == name and explicit_value is None and not _begins_with_value(state.rargs, is_value):
                explicit_value = default
            match(opt, explicit_value, state)

        parser._match_long_opt = match_long_opt  # noqa: SLF001

    parameter.add_to_parser = add_to_parser  # type: ignore[method-assign]


def _begins_with_value(words: Sequence[str], is_value: Callable[[str], bool]) -> bool:
    if not words or words[0].startswith("-"):
        return False
    return is_value(words[0]) or list(words[1:2]) == ["--"]
