from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from dgpu.cli.failures import CliFailure, note
from dgpu.cli.slurm.__main__ import COMMANDS

app = typer.Typer(add_completion=False)
_MARK = "# Installed by dgpu slurm-shims."


@app.command()
def slurm_shims(
    install: Annotated[
        Path, typer.Option("--install", metavar="DIR", help="Write the commands into this directory.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace files that are not of dgpu.")] = False,
) -> None:
    """Install sbatch, squeue, scancel, sinfo, srun, salloc, sacct and scontrol that work on dgpu.

    They cover the common options; others are refused by name. See docs/slurm.md.
    """
    foreign = [str(install / name) for name in COMMANDS if _is_foreign(install / name)]
    if foreign and not force:
        raise CliFailure(
            f"{', '.join(foreign)}: not of dgpu. Choose another directory, or replace them with --force"
        )
    try:
        install.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            _write(
                install / name,
                f'#!/bin/sh\n{_MARK}\nexec {shlex.quote(sys.executable)} -m dgpu.cli.slurm {name} "$@"\n',
            )
    except OSError as error:
        raise CliFailure(f"{install} cannot be written: {error.strerror}") from None
    typer.echo("\n".join(str(install / name) for name in COMMANDS))
    if shutil.which("sbatch") != str((install / "sbatch").absolute()):
        note(f"To use them: export PATH={shlex.quote(str(install.absolute()))}:$PATH")


def _is_foreign(path: Path) -> bool:
    try:
        return _MARK not in path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CliFailure(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, text: str) -> None:
    """Replaced at once: a running shell may be reading it."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o755)
    new.replace(path)
