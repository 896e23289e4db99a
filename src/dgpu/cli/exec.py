from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import connect
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of

if TYPE_CHECKING:
    from dgpu.cli.conversation import Ended

app = typer.Typer(add_completion=False)

CONTEXT = {"allow_interspersed_args": False}


@app.command(name="exec", context_settings=CONTEXT)
def exec_(
    ctx: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42, a running task.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="CMD", show_default=False)] = None,
    terminal: Annotated[
        bool, typer.Option("-it", "--terminal", help="With a terminal, for shells and editors.")
    ] = False,
    sends_input: Annotated[bool, typer.Option("-i", "--stdin", help="Send standard input to CMD.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Of a task over several nodes. [0]")
    ] = None,
) -> int:
    """Run a command inside a running task: its node, GPUs, variables, directory, user. Returns the command's exit code.

    The command ends with the task. Without -i and -it it has no input.
    """
    from dgpu.cli.conversation import converse, require_terminal, terminal_variables, window_size
    from dgpu.client.errors import Refused

    flags = flags_of(ctx)
    (name,) = parse_ids([task_id])
    command = command[1:] if command and command[0] == "--" else command
    if not command:
        raise typer.BadParameter(f"a command is missing; for example: dgpu exec {task_id} -- nvidia-smi")
    if terminal:
        require_terminal("Leave out -it; -i sends standard input")
    client = connect(flags)
    try:
        opened = client.open_channel(
            name,
            command,
            size=window_size() if terminal else None,
            env=terminal_variables() if terminal else None,
            rank=rank,
        )
    except Refused as error:
        if error.code == "cannot_start":
            raise CliFailure(str(error), ExitCode.NO_COMMAND) from None
        raise
    flags.returns_task_code = True
    return _code(converse(client, opened, is_terminal=terminal, sends_input=terminal or sends_input), name)


def _code(ended: Ended, name: str) -> int:
    if ended.reason == "ended":
        if ended.detail:
            note(f"dgpu: {ended.detail}")
        return ended.exit_code
    if ended.reason in {"interrupted", "detached"}:
        return ExitCode.INTERRUPTED
    raise CliFailure(
        f"{ended.detail} The command in {name} ends with its connection; {name} itself continues."
    )
