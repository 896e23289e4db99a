"""Verbs that change tasks one by one and show the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import builtins
from dgpu.cli.each import for_each
from dgpu.cli.failures import note
from dgpu.cli.formats import plural, waits_text
from dgpu.cli.output import print_document

if TYPE_CHECKING:
    from dgpu.cli.flags import Flags
    from dgpu.wire.answers import TaskAnswer

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")]
Array = Annotated[bool, typer.Option("--array", help="Refuse an id that is not the id of an array.")]


def change_tasks(ids: Sequence[str], flags: Flags, change: Callable[[str], TaskAnswer]) -> None:
    names = parse_ids(ids)
    for_each(names, change, lambda answers: _print(names, answers, flags))


def _print(names: Sequence[str], answers: list[TaskAnswer], flags: Flags) -> None:
    if not flags.is_table and flags.output != "name":
        print_document([builtins(answer) for answer in answers], flags)
        return
    typer.echo("\n".join(answer.task_id for answer in answers))
    if not flags.is_table or len(names) != 1:
        return
    array = answers[0].array
    if array is not None:
        left = plural(array.pending, "task") if array.pending else "No task"
        note(f"{left} of the array {'waits' if array.pending < 2 else 'wait'}.")
    elif answers[0].waiting:
        note(waits_text(answers[0].blockers, answers[0].waiting))
