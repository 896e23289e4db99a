from __future__ import annotations

from typing import Any

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.changing import Ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import each_of, one_or_list
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)


@app.command()
def retry(ctx: typer.Context, ids: Ids) -> None:
    """Submit tasks that are over once more, as new tasks: the same command, demands and environment."""
    flags = flags_of(ctx)
    client = connect(flags)
    in_lines = flags.is_table or flags.output == "name"

    def submit_again(task_id: str) -> Any:
        answer = client.retry(task_id)
        if in_lines:
            typer.echo(answer.task_id)  # at once: whoever interrupts knows what was submitted
        return builtins(answer)

    names = parse_ids(ids)
    answers, failure = each_of(names, submit_again)
    if answers and not in_lines:
        print_document(one_or_list(names, answers), flags)
    if failure is not None:
        raise failure
