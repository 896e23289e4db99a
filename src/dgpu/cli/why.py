from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.arrays import progress
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, duration, in_our_zone, listed, memory, moment, one_line, plural, since
from dgpu.cli.output import print_document
from dgpu.cli.ps import far_of, place_of
from dgpu.client.language import Facts, told

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)


@app.command()
def why(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="T",
            help="Why it waited then: an age (2h), 14:05, or 2026-07-30 12:00 (local time).",
        ),
    ] = None,
) -> None:
    """Why a task waits: every blocker with numbers, its position in the queue, and what would start it sooner.

    Of an array, its first task that waits; with --at, its first task.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    printed = 0

    def explain(task_id: str) -> dict[str, Any]:
        nonlocal printed
        asked = client.get(task_id)
        task = asked if at else _first_waiting(client, asked)
        name = task.task_id if task is not asked else task_id
        answer: dict[str, Any] = builtins(client.why(name, at=at and in_our_zone(at)))
        if flags.is_table:
            lines = page(answer, answer.get("task") or builtins(task))
            if asked.array is not None and asked.array.count > 1 and not at:
                lines = [f"{asked.task_id}: {progress(builtins(asked.array))}", "", *lines]
            text = "\n".join(lines)
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


def _first_waiting(client: Client, task: TaskAnswer) -> TaskAnswer:
    """The first task may run or be over while others of its array wait."""
    if task.array is None or not task.array.pending or task.status == "pending":
        return task
    found = client.page(limit=1, array=task.task_id, status="pending", sort="oldest").tasks
    return found[0] if found else task


def page(answer: dict[str, Any], task: dict[str, Any]) -> list[str]:
    now = moment(answer.get("at"))
    lines = _standing(answer, task, now)
    if now is None:
        return lines
    then = clock(answer["at"])
    return [_text("then", f"As of {then}:", at=then), "", *lines]


def _standing(answer: dict[str, Any], task: dict[str, Any], now: datetime | None) -> list[str]:
    name = f" ({one_line(task['name'])})" if task["name"] else ""
    head = f"{answer['task_id']}{name}"
    if answer["status"] == "running":
        if answer["blockers"]:
            english = f"{head} was running; its current state is unknown:"
            return [_text("unknown", english, head=head), *_blockers(answer)]
        if task.get("entrypoint") and not task["started_at"]:
            english = f"{head} is next on its worker {task['worker']}, after the calls before it."
            return [_text("next_on_worker", english, head=head, worker=task["worker"])]
        ran, place = since(task["started_at"], now), place_of({**task, "progress": None})
        english = f"{head} runs on {place} for {duration(ran) or 'a moment'}{far_of(task)}."
        return [_text("runs", english, head=head, place=place_of(task), ran=ran)]
    if answer["status"] != "pending":
        how = place_of(task).rstrip(".") if answer["status"] != "success" else ""
        english = f"{head} has ended: {answer['status']}{', ' + how if how else ''}."
        return [_text("ended", english, head=head, status=answer["status"], how=how)]
    waited = since(task["created_at"], now)
    lines = [_waited(head, waited, task)]
    if answer["position"] is not None:
        ahead = f", behind {listed(answer['ahead'], 5)}" if answer["ahead"] else ", next in line"
        english = f"Position in the queue: {answer['position']}{ahead}."
        lines.append(
            _text("position", english, position=answer["position"], ahead=", ".join(answer["ahead"][:5]))
        )
    if answer["blockers"]:
        lines += ["", _text("because", "It waits because"), *_blockers(answer)]
    if now is None:
        lines += ["", _expected(answer)]
    if answer.get("reservation"):
        lines += [
            _text(
                "reservation", f"Reservation: {reservation(answer['reservation'])}", **answer["reservation"]
            )
        ]
    return [*lines, *_nearest(answer), *_sooner(answer)]


def _nearest(answer: dict[str, Any]) -> list[str]:
    nearest = answer["nearest"]
    if not nearest or not nearest["lacks"]:
        return []
    node = one_line(nearest["node"])
    english = f"Best node: {node}, which lacks {_lacks(nearest['lacks'])}"
    return ["", _text("nearest", english, node=node, **nearest["lacks"])]


def _sooner(answer: dict[str, Any]) -> list[str]:
    if not answer["sooner"]:
        return []
    texts = [
        told("change", each["change"], each["facts"], each["detail"] or each["change"])
        for each in answer["sooner"]
    ]
    return ["", _text("sooner", "It would start"), *(f"  - {one_line(text)}" for text in texts)]


def _text(code: str, english: str, **facts: Any) -> str:
    return told("text", code, facts, english)


def _waited(head: str, waited: float | None, task: dict[str, Any]) -> str:
    english = f"{head} has waited for {duration(waited)}; it needs "
    if task.get("entrypoint"):
        return _text("waited_for_worker", f"{english}a worker.", head=head, waited=waited)
    english += f"{_asks(task)}."
    return _text("waited", english, head=head, waited=waited, gpus=task["gpu_count"], cpus=task["cpus"])


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
    return [f"  - {one_line(_blocker(each))}" for each in answer["blockers"]]


def _blocker(facts: Facts) -> str:
    return told("blocker", str(facts.get("code")), facts, str(facts.get("detail") or facts.get("code")))


def _expected(answer: dict[str, Any]) -> str:
    expected = answer["expected_start"]
    if expected is None:
        if answer["looked_ahead"]:
            return _text("start_unknown", "Expected start: unknown")
        return _text("no_forecast", "Expected start: no forecast yet; ask again in a few seconds")
    error = expected["median_error_seconds"]
    past = f"; median error {duration(error)}" if error is not None else "; no forecast was verified yet"
    if (age := expected.get("age_seconds", 0)) >= 10:
        past += f"; forecast made {duration(age)} ago"
    p50, p90 = clock(expected["p50"]), clock(expected["p90"])
    english = f"Expected start: {p50} (by {p90} in 9 of 10 cases{past})"
    return _text("expected", english, p50=p50, p90=p90, median=error, age=age if age >= 10 else 0)
