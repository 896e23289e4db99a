from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.failures import CliFailure, ExitCode

app = typer.Typer(add_completion=False)
MAX_MINUTES = 24 * 60
# The control character keeps the lines apart.
EXAMPLES = """\b
Examples:
  dgpu chaos --minutes 10 --seed 7
  dgpu chaos --rounds 20 --fault kill-master --fault kill-machine
  dgpu chaos --rounds 1 --fault lose-majority-60 --keep
"""


@app.command(epilog=EXAMPLES)
def chaos(
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="How long; without it and --rounds: 5.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", min=1, help="How many faults.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Chooses the faults; without it: a random one.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="Only this kind; repeat it for several. See --list."),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", metavar="R", min=1, max=2_000, help="Submits per second.")
    ] = 200,
    network: Annotated[
        bool | None,
        typer.Option(
            "--network/--no-network",
            help="Faults of the network, in namespaces of its own; without it: if the user is root.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory with logs and the history.")
    ] = False,
    list_faults: Annotated[bool, typer.Option("--list", help="List the kinds of faults and exit.")] = False,
) -> int:
    """Kill, stop and cut off parts of a highly available cluster under load, and check that nothing is lost.

    The cluster is made for this run, on this machine: two schedulers, a witness, two nodes with simulated GPUs. It
    needs etcd in PATH. Ctrl-C ends the run with a verdict so far. Exit code 0: all promises were kept; 1: not.
    """
    if list_faults:
        return _list_faults()
    if minutes is not None and not 0 < minutes <= MAX_MINUTES:
        raise typer.BadParameter(f"expected more than 0 and at most {MAX_MINUTES}", param_hint="--minutes")
    from dgpu.entry.chaos.command import ChaosRefused, chaos

    try:
        is_good = chaos(
            minutes=minutes, rounds=rounds, seed=seed, faults=fault, rate=rate, network=network, keep=keep
        )
    except ChaosRefused as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None
    return ExitCode.OK if is_good else ExitCode.FAILED


def _list_faults() -> int:
    from dgpu.entry.chaos.faults import FAULTS

    for name, each in FAULTS.items():
        typer.echo(f"{name:<22}{each.summary}")
    return ExitCode.OK
