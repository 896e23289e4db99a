from __future__ import annotations

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.changing import Ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)


@app.command()
def retry(ctx: typer.Context, ids: Ids) -> None:
    """Submit tasks that are over once more, as new tasks: the same command, demands and environment."""
    flags = flags_of(ctx)
    client = connect(flags)
    answers = []
    for task_id in parse_ids(ids):  # each is told at once: one that is refused does not hide those before it
        answer = client.retry(task_id)
        answers.append(builtins(answer))
        if flags.is_table or flags.output == "name":
            typer.echo(answer.task_id)
    if not flags.is_table and flags.output != "name":
        print_document(answers[0] if len(answers) == 1 else answers, flags)
