from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False, no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="D", help="The scheduler's storage.snapshot_dir; without it: of --config."),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="F", help="scheduler.yaml")]


@app.callback()
def ha() -> None:
    """High availability, and backups. The verbs work on the directory of a scheduler, on its own machine."""


@app.command()
def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, for example dgpu.tar.gz.")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Save tasks, history, tokens, secrets and the authority in one file. The scheduler may run."""
    from dgpu.entry.ha.backup import back_up
    from dgpu.entry.ha.errors import HaFailure

    try:
        saved = back_up(_data_dir(directory, config), file.expanduser().absolute())
    except HaFailure as error:
        raise CliFailure(f"{error}.", ExitCode.REFUSED) from None
    _print(saved, str(file), ctx)
    note(f"Saved {saved.tasks} tasks as of group {saved.index}, epoch {saved.epoch}.")
    note("The file holds keys: keep it private. Output of tasks and curves of GPUs are not in it.")


@app.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of `dgpu ha backup`.")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Make the directory of a single scheduler from a backup. The directory must be new or empty."""
    from dgpu.entry.ha.backup import restore as restore_to
    from dgpu.entry.ha.errors import HaFailure

    data_dir = _data_dir(directory, config)
    try:
        saved = restore_to(file.expanduser().absolute(), data_dir)
    except HaFailure as error:
        raise CliFailure(f"{error}.", ExitCode.REFUSED) from None
    _print(saved, str(data_dir), ctx)
    note(f"Restored {saved.tasks} tasks as of {saved.made_at}: group {saved.index}, epoch {saved.epoch}.")
    note(
        "Later tasks are lost. Stop every other scheduler of this cluster, then start this one once with: "
        "dgpu scheduler --accept-lost-tail"
    )


def _data_dir(directory: Path | None, config: Path | None) -> Path:
    if directory is not None:
        return directory.expanduser().absolute()
    from dgpu.entry.config import ConfigError, load_scheduler_config
    from dgpu.entry.scheduler import data_dir

    try:
        return data_dir(load_scheduler_config(config))
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None


def _print(document: Any, line: str, ctx: typer.Context) -> None:
    import msgspec

    flags = flags_of(ctx)
    if flags.is_table or flags.output == "name":
        typer.echo(line)
    else:
        print_document(msgspec.to_builtins(document), flags)
