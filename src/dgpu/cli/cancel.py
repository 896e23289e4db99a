from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import connect
from dgpu.cli.failures import CliFailure, ExitCode, note, translated
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import plural
from dgpu.cli.output import print_document

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)

STATES = ("pending", "running")


@app.command()
def cancel(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All tasks, or those that match -A and -s.")
    ] = False,
    array: Annotated[
        str | None,
        typer.Option("--array", metavar="ID", help="The tasks of this array; with -s, some of them."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-A", metavar="T", help="With --all: only this tenant.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status", "-s", metavar="STATE", help="With --all: only pending or only running tasks."
        ),
    ] = None,
) -> None:
    """Cancel waiting or running tasks. The id of an array means all of its tasks. Ended tasks do not change."""
    flags = flags_of(ctx)
    if [bool(ids), everything, array is not None].count(True) != 1:
        raise typer.BadParameter("give task ids, --array or --all")
    if not everything and (tenant or (status and array is None)):
        raise typer.BadParameter("-A and -s require --all")
    if array is not None:
        (first,) = parse_ids([array])
        number = connect(flags).cancel_where(array=first, status=status)
        if flags.output in {"json", "yaml"}:
            print_document({"cancelled": number}, flags)
        else:
            note(f"{plural(number, 'task')} cancelled.")
        return
    if status is not None and status not in STATES:
        raise typer.BadParameter(f"{status!r} is neither pending nor running", param_hint="--status")
    client = connect(flags)
    names = parse_ids(ids or ())
    number = _cancel_all(client, tenant, status) if everything else _cancel_named(client, names)
    if flags.output in {"json", "yaml"}:
        print_document({"cancelled": number}, flags)
        return
    if not everything and number:
        _print_cancelled([client.get(name) for name in names], names)
    if number != len(names) or everything:
        ended = " The others had ended." if len(names) > 1 else f" {names[0]} had ended." if names else ""
        note(f"{plural(number, 'task')} cancelled.{ended if number < len(names) else ''}")


def _print_cancelled(tasks: list[TaskAnswer], names: list[str]) -> None:
    for name, task in zip(names, tasks, strict=True):
        if task.status not in {"success", "failed"} or (task.array is not None and task.array.cancelled):
            typer.echo(name)


def _cancel_named(client: Client, names: list[str]) -> int:
    """All or none: the scheduler gets one request."""
    try:
        return client.cancel(*names)
    except Exception as error:
        failure = translated(error)
        if failure is None or failure.exit_code != ExitCode.NOT_FOUND or len(names) == 1:
            raise
        raise CliFailure(
            f"{failure.message}\nNone of the others was cancelled.", failure.exit_code
        ) from error


def _cancel_all(client: Client, tenant: str | None, status: str | None) -> int:
    """Waiting tasks first: otherwise they would start on the GPUs of the cancelled ones."""
    return sum(client.cancel_where(tenant=tenant, status=state) for state in ([status] if status else STATES))
