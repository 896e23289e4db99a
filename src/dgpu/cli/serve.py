from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli import submission as s
from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.output import print_document
from dgpu.cli.uploading import with_uploads

if TYPE_CHECKING:
    from dgpu.wire.service_answers import ServiceAnswer

app = typer.Typer(add_completion=False)

DEFAULT_PORT = 8000
_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RANGE = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")


# Flags may follow the factory; a command with flags of its own comes after `--`.
@app.command(context_settings={**s.CONTEXT, "allow_interspersed_args": True})
def serve(
    ctx: typer.Context,
    command: s.Command = None,
    replicas: Annotated[
        str, typer.Option("--replicas", metavar="N[-M]", help="2, or 1-4: follows the requests. [1]")
    ] = "1",
    health: Annotated[
        str, typer.Option("--health", metavar="PATH", help="/healthz; without it, a connection is enough.")
    ] = "",
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", help="In progress per replica; more start further ones. [8]"),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--start-seconds", metavar="S", help="A new replica must be ready then. [300]"),
    ] = None,
    stop_first: Annotated[
        bool, typer.Option("--stop-first", help="Stop an old replica before a new one starts: no spare GPU.")
    ] = False,
) -> None:
    """Run a service: equal tasks behind one address, replaced when they fail, updated one by one.

    dgpu serve app:factory --replicas 2 --port 8000 --health /healthz   runs factory() of app.py: an ASGI or WSGI
    application, or a function of one JSON value. dgpu serve --name chat -- CMD…   runs a command that listens on
    $DGPU_PORT. The same name again is an update. See dgpu services.
    """
    flags = flags_of(ctx)
    words = _words(command)
    low, high = parse_replicas(replicas)
    is_app = len(words) == 1 and _APP.fullmatch(words[0]) is not None
    client = connect(flags)
    task = s.task_fields(ctx, ["python", "-m", "dgpu.serving", words[0]] if is_app else words)
    name = task.get("name") or _name_of(words[0])
    port = (task.pop("ports", None) or [DEFAULT_PORT])[0]
    task.pop("restart", None)
    task = with_uploads(client, [task])[0]
    made = client.set_service(
        name,
        task,
        port,
        min_replicas=low,
        max_replicas=high,
        health=health,
        requests_per_replica=requests,
        start_seconds=start,
        replace="stop-first" if stop_first else None,
    )
    _print(made, flags)


def _words(command: list[str] | None) -> list[str]:
    if not command:
        raise typer.BadParameter("a factory or a command is missing; for example: dgpu serve app:factory")
    if len(command) == 1 and Path(f"{command[0]}.py").is_file():
        raise typer.BadParameter(
            f"{command[0]!r} is a module; name a function of it, too: {command[0]}:factory"
        )
    return list(command)


def _print(made: ServiceAnswer, flags: Flags) -> None:
    if flags.is_table:
        typer.echo(made.url or made.name)
        note(
            f"Service {made.name}, generation {made.generation}. To follow it: dgpu services show {made.name}"
        )
    elif flags.output == "name":
        typer.echo(made.name)
    else:
        print_document(builtins(made), flags)


def parse_replicas(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise typer.BadParameter(f"--replicas {text!r}: expected a number like 2, or a range like 1-4")
    return int(found[1]), int(found[2] or found[1])


def _name_of(word: str) -> str:
    """From app:factory, a program, or a line for the shell that begins with one."""
    module: Any = word.strip().partition(" ")[0].partition(":")[0].rpartition("/")[2].partition(".")[0]
    return re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-") or "service"
