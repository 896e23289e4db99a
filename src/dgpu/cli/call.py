from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli import submission as s
from dgpu.cli.connection import builtins, connect, is_same_host
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.output import print_document
from dgpu.cli.result import awaited, show_result
from dgpu.cli.uploading import with_uploads
from dgpu.client.surroundings import current_directory

if TYPE_CHECKING:
    from dgpu.client.sync import Client

app = typer.Typer(add_completion=False)


@app.command()
def call(
    ctx: typer.Context,
    entrypoint: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="package.module:function.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", show_default=False, help="As texts; numbers with --json-args."),
    ] = None,
    kwargs: Annotated[list[str] | None, typer.Option("--kwarg", "-k", metavar="K=V", help="By name.")] = None,
    json_args: Annotated[
        bool, typer.Option("--json-args", help="ARG and V are JSON: 3, true, [1,2].")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", "-W", help="Wait, and print the result.")] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Interpreter of the worker. [on this host: ours]"),
    ] = None,
    python_path: Annotated[
        list[str] | None,
        typer.Option("--python-path", metavar="DIR", help="Directory with the module. [on this host: here]"),
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", metavar="N", min=1, max=256, help="Workers at once. [8]")
    ] = None,
    preload: Annotated[
        list[str] | None,
        typer.Option("--preload", metavar="MODULE:LOADER", help="Models to load at the start."),
    ] = None,
) -> int:
    """Call a function on a GPU, in a worker that stays for further calls and keeps its models.

    dgpu call job:run input.txt --wait
    """
    code = {"python": python, "python_path": python_path, "max_workers": max_workers, "preload": preload}
    read = _Reader(is_json=json_args)
    task = s.described(s.given_options(ctx), ())
    task |= {"entrypoint": entrypoint, "args": [read.value(each, "ARG") for each in args or ()]}
    if kwargs:
        task["kwargs"] = dict(map(read.named, kwargs))
    return _submit(task, code, flags_of(ctx), wait=wait)


def _submit(task: dict[str, Any], code: dict[str, Any], flags: Flags, *, wait: bool) -> int:
    from dgpu.functions.versions import VERSION_VARIABLE, found_version, this_python

    client = connect(flags)
    is_here = is_same_host(client.urls)
    code["python"] = code["python"] or (this_python() if is_here else None)
    code["python_path"] = _directories(code["python_path"], is_here=is_here, uploads="upload" in task)
    module = task["entrypoint"].partition(":")[0]
    if "upload" not in task and (version := found_version(module, code["python_path"])):
        task["env"] = {**task.get("env", {}), VERSION_VARIABLE: version}
    task |= {name: value for name, value in code.items() if value}
    answer = client.submit(**with_uploads(client, [task])[0])
    if wait:
        flags.returns_task_code = True
        return _waited(client, answer.task_id, flags)
    if flags.is_table or flags.output == "name":
        typer.echo(answer.task_id)
    else:
        print_document(builtins(answer), flags)
    if flags.is_table:
        note(f"Its result: dgpu result --wait {answer.task_id.removeprefix('task-')}")
    return 0


def _waited(client: Client, task_id: str, flags: Flags) -> int:
    try:
        return show_result(client, awaited(client, task_id, None), flags)
    except KeyboardInterrupt:
        client.cancel(task_id)
        note(f"dgpu: {task_id} is cancelled")
        raise


def _directories(given: list[str] | None, *, is_here: bool, uploads: bool) -> list[str]:
    """Relative ones are of this directory, or of the upload."""
    here = current_directory() or "/"
    if given:
        return given if uploads else [os.path.normpath(os.path.join(here, each)) for each in given]  # noqa: PTH118
    return [here] if is_here and not uploads else []


class _Reader:
    """Arguments as typed: texts, or JSON."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def named(self, text: str) -> tuple[str, Any]:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--kwarg")
        return name, self.value(value, f"--kwarg {name}")

    def value(self, text: str, where: str) -> Any:
        if not self._is_json:
            return text
        try:
            return json.loads(text)
        except ValueError as error:
            raise typer.BadParameter(
                f"{text!r} is not JSON: {error}; a text is '\"{text}\"'", param_hint=where
            ) from None
