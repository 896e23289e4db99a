from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, duration, listed, memory, one_line, plural, since
from dgpu.cli.output import print_document
from dgpu.cli.ps import place_of

app = typer.Typer(add_completion=False)


@app.command()
def why(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
) -> None:
    """Why a task waits: every blocker with numbers, its position in the queue, and what would start it sooner."""
    flags = flags_of(ctx)
    client = connect(flags)
    printed = 0

    def explain(task_id: str) -> dict[str, Any]:
        nonlocal printed
        answer: dict[str, Any] = builtins(client.why(task_id))
        if flags.is_table:
            text = "\n".join(page(answer, builtins(client.get(task_id))))
            typer.echo(f"\n{text}" if printed else text)
            printed += 1
        return answer

    def show(answers: list[dict[str, Any]]) -> None:
        if flags.output == "name":
            typer.echo("\n".join(answer["task_id"] for answer in answers))
        elif not flags.is_table:
            print_document(answers, flags)

    names = parse_ids(ids)
    for_each(names, explain, show)


def page(answer: dict[str, Any], task: dict[str, Any]) -> list[str]:
    name = f" ({one_line(task['name'])})" if task["name"] else ""
    head = f"{answer['task_id']}{name}"
    if answer["status"] == "running":
        if answer["blockers"]:
            return [f"{head} was running; its current state is unknown:", *_blockers(answer)]
        return [f"{head} runs on {place_of(task)} for {duration(since(task['started_at'])) or 'a moment'}."]
    if answer["status"] != "pending":
        ended = f"{head} has ended: {answer['status']}"
        return [f"{ended}{', ' + place_of(task) if answer['status'] != 'success' else ''}."]
    lines = [f"{head} has waited for {duration(since(task['created_at']))}; it needs {_asks(task)}."]
    if answer["position"] is not None:
        ahead = f", behind {listed(answer['ahead'], 5)}" if answer["ahead"] else ", next in line"
        lines.append(f"Position in the queue: {answer['position']}{ahead}.")
    if answer["blockers"]:
        lines += ["", "It waits because", *_blockers(answer)]
    lines += ["", f"Expected start: {_expected(answer)}"]
    if answer.get("reservation"):
        lines += [f"Reservation: {reservation(answer['reservation'])}"]
    nearest = answer["nearest"]
    if nearest and nearest["lacks"]:
        lines += ["", f"Best node: {one_line(nearest['node'])}, which lacks {_lacks(nearest['lacks'])}"]
    if answer["sooner"]:
        lines += ["", "It would start"]
        lines += [f"  - {one_line(change['detail'] or change['change'])}" for change in answer["sooner"]]
    return lines


def _asks(task: dict[str, Any]) -> str:
    """CPUs are named only if they are counted."""
    cpus = task["cpus"]
    counted = f" and {cpus:g} {'CPU' if cpus == 1 else 'CPUs'}" if cpus else ""
    return f"{plural(task['gpu_count'], 'GPU')}{counted}"


def reservation(held: dict[str, Any]) -> str:
    where = f"on {', '.join(one_line(node) for node in held['nodes'])}"
    when = f"starts by {clock(held['at'])}" if held["at"] else "start unknown"
    waits = f", waits for {listed(held['waits_for'], 5)}" if held["waits_for"] else ""
    return f"{where}, {when}{waits}"


def _lacks(lacks: dict[str, int]) -> str:
    words = {
        "gpus": lambda number: plural(number, "GPU"),
        "cpus_milli": lambda number: f"{number / 1_000:g} cpus",
        "ram_mb": lambda number: f"{memory(number)} of ram",
    }
    return ", ".join(
        words[what](number) if what in words else f"{number} {what}" for what, number in lacks.items()
    )


def _blockers(answer: dict[str, Any]) -> list[str]:
    return [
        f"  - {one_line(str(blocker.get('detail') or blocker.get('code')))}" for blocker in answer["blockers"]
    ]


def _expected(answer: dict[str, Any]) -> str:
    expected = answer["expected_start"]
    if expected is None:
        return "unknown" if answer["looked_ahead"] else "no forecast yet; ask again in a few seconds"
    error = expected["median_error_seconds"]
    past = f"; median error {duration(error)}" if error is not None else "; no forecast was verified yet"
    if (age := expected.get("age_seconds", 0)) >= 10:
        past += f"; forecast made {duration(age)} ago"
    return f"{clock(expected['p50'])} (by {clock(expected['p90'])} in 9 of 10 cases{past})"
