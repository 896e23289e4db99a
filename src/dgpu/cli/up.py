from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def up(
    fake: Annotated[
        str | None, typer.Option("--fake", metavar="4xV100", help="Simulated GPUs: 4xV100, or 2xA100,4xT4.")
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=500, help="Simulated nodes, each with these GPUs.")
    ] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="D", help="Directory of the state. [~/.local/state/dgpu]"),
    ] = None,
    http_port: Annotated[
        int, typer.Option("--http-port", min=0, max=65535, help="If the port is in use, a free one.")
    ] = 8080,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=0, max=65535, help="If the port is in use, a free one.")
    ] = 9090,
    accept_lost_tail: Annotated[
        bool,
        typer.Option("--accept-lost-tail", help="Start although the latest groups of the journal are lost."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background; return when ready.")
    ] = False,
) -> int:
    """Start a scheduler and an agent for this machine.

    It uses real GPUs if there are any; otherwise it simulates GPUs and reports this. Ctrl-C stops both services.
    Running tasks continue, and the next `dgpu up` adopts them.
    """
    from dgpu.entry.up import UpOptions, up, up_detached

    options = UpOptions(
        fake=fake,
        nodes=nodes,
        data_dir=data_dir,
        http_port=http_port,
        grpc_port=grpc_port,
        accept_lost_tail=accept_lost_tail,
    )
    try:
        return up_detached(options) if detach else up(options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        from dgpu.cli.failures import CliFailure

        raise CliFailure(
            f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        ) from None
