"""Verbs with several ids: a failed id neither hides earlier results nor stops the later ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import typer

from dgpu.cli.failures import CliFailure, ExitCode, translated
from dgpu.cli.formats import listed
from dgpu.cli.output import print_document

if TYPE_CHECKING:
    from dgpu.cli.flags import Flags

T = TypeVar("T")
_FAIL_FOR_ALL = frozenset({ExitCode.UNREACHABLE, ExitCode.NOT_PERMITTED, ExitCode.TIMEOUT})


def for_each(names: Iterable[str], work: Callable[[str], T], show: Callable[[list[T]], object]) -> None:
    """Shows the results, then raises all failures as one, with the exit code of the first."""
    done, failure = _each_of(names, work)
    if done:
        show(done)
    if failure is not None:
        raise failure


def _each_of(names: Iterable[str], work: Callable[[str], T]) -> tuple[list[T], CliFailure | None]:
    """Stops after a failure that all other ids would repeat: the scheduler is unreachable or denies access."""
    done: list[T] = []
    failures: list[CliFailure] = []
    left = list(names)
    while left:
        name = left.pop(0)
        try:
            done.append(work(name))
        except Exception as error:
            failure = translated(error)
            if failure is None:
                raise
            failures.append(failure)
            if failure.exit_code in _FAIL_FOR_ALL:
                break
    if not failures:
        return done, None
    texts = [failure.message for failure in failures]
    if left:
        texts.append(f"Not tried: {listed(left)}")
    return done, CliFailure("\n".join(texts), failures[0].exit_code, error=failures[0].error)


def remove_each(names: Iterable[str], remove: Callable[[str], object], flags: Flags) -> None:
    in_lines = flags.is_table or flags.output == "name"

    def work(name: str) -> str:
        remove(name)
        if in_lines:
            typer.echo(name)
        return name

    def show(removed: list[str]) -> None:
        if not in_lines:
            print_document({"removed": removed}, flags)

    for_each(names, work, show)
