from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def install_service(
    role: Annotated[
        str, typer.Argument(metavar="[up|scheduler|agent|witness]", help="The role of the unit.")
    ] = "up",
    system: Annotated[
        bool, typer.Option("--system/--user", help="For the whole machine, or for your user.")
    ] = False,
    print_only: Annotated[bool, typer.Option("--print", help="Print the unit, write nothing.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="F", help="Configuration file of a scheduler or an agent."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="D", help="The directory of `dgpu up`, or of a witness."),
    ] = None,
    run_as: Annotated[
        str, typer.Option("--run-as", metavar="USER", help="The user of a system unit. [root]")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a different unit.")] = False,
) -> None:
    """Write a systemd unit for this user or, with --system, for the machine."""
    from dgpu.cli.failures import CliFailure, note
    from dgpu.entry import service_unit

    if role not in service_unit.ROLES:
        raise typer.BadParameter(f"{role!r} is not one of {', '.join(service_unit.ROLES)}")
    options = service_unit.UnitOptions(
        role=role, system=system, config=config, data_dir=data_dir, run_as=run_as
    )
    try:
        if print_only:
            typer.echo(service_unit.unit_text(options), nl=False)
            return
        path = service_unit.write_unit(options, force=force)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except FileExistsError as error:
        raise CliFailure(f"{error} exists and differs. Check it, then use --force") from None
    except OSError as error:
        raise CliFailure(
            f"Cannot write {error.filename}: {error.strerror}. To see the text: --print"
        ) from None
    typer.echo(str(path))
    note("Now:\n  " + "\n  ".join(service_unit.next_steps(options)))
