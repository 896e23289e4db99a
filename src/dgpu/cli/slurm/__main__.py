"""`python -m dgpu.cli.slurm sbatch ...`: the first argument is the name of the command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from dgpu.cli.failures import CliFailure, ExitCode, translated

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "srun", "salloc", "sacct", "scontrol")


def run(name: str, arguments: Sequence[str]) -> int:
    """Arguments in, exit code out. Slurm's commands return 1 for errors of their own."""
    if name not in COMMANDS:
        _complain(name, f"not one of {', '.join(COMMANDS)}")
        return ExitCode.USAGE
    try:
        code: int = importlib.import_module(f"dgpu.cli.slurm.{name}").run(list(arguments))
    except typer.TyperException as error:
        _complain(name, getattr(error, "message", str(error)))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        failure = translated(error) or CliFailure(f"internal error: {type(error).__name__}: {error}")
        if os.environ.get("DGPU_DEBUG"):
            raise
        _complain(name, failure.message)
        return 1
    return code


def _complain(name: str, message: str) -> None:
    sys.stdout.flush()
    for line in message.splitlines():
        sys.stderr.write(f"{name}: error: {line}\n")


def main() -> None:
    try:
        code = run(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
