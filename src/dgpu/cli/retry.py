from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.changing import Ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import plural
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)


@app.command()
def retry(
    ctx: typer.Context,
    ids: Ids,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only failed tasks of an array, even while others still run.")
    ] = False,
) -> None:
    """Submit ended tasks again as new tasks, with the same command, demands and environment. An array becomes a new
    array with the same indexes.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    in_lines = flags.is_table or flags.output == "name"

    def submit_again(task_id: str) -> Any:
        answer = client.retry(task_id, failed=failed)
        if in_lines:
            typer.echo(
                answer.task_id
            )  # at once, so that after an interrupt the user knows the submitted tasks
            if answer.count > 1 and flags.is_table:
                note(f"An array of {plural(answer.count, 'task')}.")
        return builtins(answer)

    def show(answers: list[Any]) -> None:
        if not in_lines:
            print_document(answers, flags)

    names = parse_ids(ids)
    for_each(names, submit_again, show)
