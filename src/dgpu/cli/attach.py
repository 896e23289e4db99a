from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import connect, is_final
from dgpu.cli.failures import CliFailure, ExitCode
from dgpu.cli.flags import flags_of

app = typer.Typer(add_completion=False)


@app.command()
def attach(
    ctx: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42, started by run -it.")],
) -> int:
    """Attach to the terminal of a running task. Returns the task's exit code if it ends meanwhile.

    Ctrl-P Ctrl-Q detaches; the task continues. A new client replaces the one that is attached.
    """
    from dgpu.cli.conversation import require_terminal
    from dgpu.cli.terminal_task import follow_terminal

    flags = flags_of(ctx)
    (name,) = parse_ids([task_id])
    require_terminal(f"The output: dgpu logs -f {task_id}")
    client = connect(flags)
    task = client.get(name)
    if is_final(task):
        raise CliFailure(f"{name} has ended ({task.status}). Its output: dgpu logs {name}", ExitCode.REFUSED)
    flags.returns_task_code = True
    return follow_terminal(client, name, first=task if task.status != "pending" else None)
