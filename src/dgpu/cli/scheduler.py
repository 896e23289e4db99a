from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def scheduler(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="F", help="scheduler.yaml; without it: defaults.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the configuration and exit.")] = False,
    rebuild_history: Annotated[
        bool, typer.Option("--rebuild-history", help="Rebuild the history from the journal, then exit.")
    ] = False,
    accept_lost_tail: Annotated[
        bool,
        typer.Option("--accept-lost-tail", help="Start although the latest groups of the journal are lost."),
    ] = False,
    accept_new_keys: Annotated[
        bool,
        typer.Option(
            "--accept-new-keys",
            help="With several schedulers: token.key, secrets.key or ca were replaced on purpose.",
        ),
    ] = False,
) -> int:
    """The scheduler service, in the foreground. SIGTERM stops it; tasks continue."""
    from dgpu.cli.failures import CliFailure, ExitCode, note
    from dgpu.cli.flags import flags_of
    from dgpu.entry.config import ConfigError, load_scheduler_config

    flags_of(ctx).is_service = True
    try:
        settings = load_scheduler_config(config)
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None
    if check:
        note("The configuration is valid.")
        return ExitCode.OK
    if rebuild_history:
        from dgpu.entry.history import rebuild

        return rebuild(settings)
    from dgpu.entry.scheduler import run_scheduler

    return run_scheduler(settings, accept_lost_tail=accept_lost_tail, accept_new_keys=accept_new_keys)
