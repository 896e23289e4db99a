from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def agent(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="F", help="agent.yaml; without it: defaults.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the configuration and exit.")] = False,
) -> int:
    """The agent service of a node, in the foreground. Tasks continue when it stops."""
    from dgpu.cli.failures import CliFailure, ExitCode, note
    from dgpu.cli.flags import flags_of
    from dgpu.entry.config import ConfigError, load_agent_config

    flags_of(ctx).is_service = True
    try:
        settings = load_agent_config(config)
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None
    if check:
        note("The configuration is valid.")
        return ExitCode.OK
    from dgpu.entry.agent import run_agent

    return run_agent(settings)
