from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.failures import CliFailure, ExitCode, note

if TYPE_CHECKING:
    from dgpu.entry.config_types import AgentConfig

app = typer.Typer(add_completion=False)

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="F", help="agent.yaml; without it: defaults.")
]


@app.callback(invoke_without_command=True)
def agent(
    ctx: typer.Context,
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the configuration and exit.")] = False,
) -> int:
    """The agent service of a node, in the foreground. Tasks continue when it stops."""
    if ctx.invoked_subcommand is not None:
        return ExitCode.OK
    from dgpu.cli.flags import flags_of

    flags_of(ctx).is_service = True
    settings = _load(config)
    if check:
        note("The configuration is valid.")
        return ExitCode.OK
    from dgpu.entry.agent import run_agent

    return run_agent(settings)


@app.command()
def join(
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT[,…]", help="server.join_address of each scheduler.")
    ],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="DGPU_JOIN_TOKEN",
            help="Of `dgpu ca token`; - reads it from stdin.",
        ),
    ],
    ca_fingerprint: Annotated[
        str | None,
        typer.Option(
            "--ca-fingerprint", metavar="F", help="Of `dgpu ca init`; without it: that of the token."
        ),
    ] = None,
    config: Config = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="D", help="For the certificate; without it: scheduler.tls.dir."),
    ] = None,
) -> None:
    """Exchange a one-time token for the certificate of this machine."""
    import sys

    from dgpu.entry.machines import MachineFailure, NoAnswer, join_cluster

    settings = _load(config)
    text = sys.stdin.readline() if token == "-" else token  # noqa: S105 - not a password
    try:
        joined = join_cluster(settings, server, text, ca_fingerprint, directory)
    except NoAnswer as error:
        raise CliFailure(str(error), ExitCode.UNREACHABLE) from None
    except MachineFailure as error:
        raise CliFailure(str(error), ExitCode.REFUSED) from None
    typer.echo("\n".join(joined.nodes))
    note(f"Joined. The certificate is in {joined.directory}, and the agent uses it from its next start.")
    which = "" if len(joined.schedulers) == 1 else ", if all schedulers use the same port"
    note(f"For agent.yaml{which}: scheduler.master_address: {','.join(joined.schedulers)}")
    if joined.unnamed:
        note(
            f"The certificate does not name {joined.unnamed[0]}, which agent.id makes this agent; set agent.id."
        )


def _load(config: Path | None) -> AgentConfig:
    from dgpu.entry.config import ConfigError, load_agent_config

    try:
        return load_agent_config(config)
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None
