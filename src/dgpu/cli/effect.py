"""Prints the predicted effect of --dry-run."""

from __future__ import annotations

from typing import Any

import typer

from dgpu.cli.failures import ExitCode, complain
from dgpu.cli.flags import Flags
from dgpu.cli.formats import clock, duration, listed, one_line, plural
from dgpu.cli.output import print_document

_MAX_SHOWN = 10


def print_effect(answer: dict[str, Any], flags: Flags) -> int:
    """The exit code: success, or refused."""
    rejected = answer["rejected"]
    if flags.output == "name":
        typer.echo("\n".join(start["task_id"] for start in answer["starts"]))
    elif not flags.is_table:
        print_document(answer, flags)
    elif rejected is None:
        typer.echo("\n".join(effect_lines(answer)))
    if rejected is None:
        return ExitCode.OK
    complain(f"it would be refused: {rejected['detail']}")
    return ExitCode.NOT_FOUND if rejected["status"] == 404 else ExitCode.REFUSED


def effect_lines(answer: dict[str, Any]) -> list[str]:
    lines = [_start(start) for start in answer["starts"][:_MAX_SHOWN]]
    lines += _more(answer["starts"], "would start now")
    for wait in answer["waits"][:_MAX_SHOWN]:
        when = wait["expected_start"]
        lines.append(
            f"{wait['task_id']} (new) would wait; expected start: {clock(when) if when else 'unknown'}"
        )
        lines += [f"  - {one_line(str(blocker.get('detail')))}" for blocker in wait["blockers"]]
    lines += _more(answer["waits"], "would wait")
    for delay in answer["delays"][:_MAX_SHOWN]:
        later = "at an unknown time" if delay["seconds"] is None else f"{duration(delay['seconds'])} later"
        lines.append(f"{delay['task_id']} would start {later}, instead of {clock(delay['before'])}")
    lines += _more(answer["delays"], "would start later")
    for stop in answer["stops"][:_MAX_SHOWN]:
        lines.append(
            f"{stop['task_id']} on {one_line(stop['node'])} would be stopped ({one_line(stop['reason'])})"
        )
    lines += _more(answer["stops"], "would be stopped")
    lines += _of_others(answer.get("others") or {})
    return lines or ["Nothing would change for any task."]


def _start(start: dict[str, Any]) -> str:
    new = " (new)" if start["new"] else ""
    return f"{start['task_id']}{new} would start now on {one_line(listed(start['nodes']))}"


def _of_others(numbers: dict[str, int]) -> list[str]:
    words = {"starts": "would start now", "delays": "would start later", "stops": "would be stopped"}
    return [
        f"{plural(numbers[name], 'task')} of other tenants {would}"
        for name, would in words.items()
        if numbers.get(name)
    ]


def _more(items: list[Any], would: str) -> list[str]:
    left = len(items) - _MAX_SHOWN
    return [f"and {plural(left, 'task')} more {would}"] if left > 0 else []
