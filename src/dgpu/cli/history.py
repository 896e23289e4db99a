from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration, parse_ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import in_our_zone, memory, period, plural
from dgpu.cli.output import Column, Row, print_rows, repeat
from dgpu.cli.sparks import highest, mean, spark
from dgpu.wire.task_names import parse_named

if TYPE_CHECKING:
    from dgpu.client import Client

app = typer.Typer(add_completion=False)

METRICS = {
    "utilization": "utilization_percent",
    "memory": "memory_used_mb",
    "temperature": "temperature_c",
    "power": "power_w",
}
_WIDTH = 40
_MAX_GPUS = 64  # per request
_MARGIN = dt.timedelta(seconds=10)  # before and after a task: the curve of a short one would have no point


def _whole(key: str, unit: str, *, peak: bool) -> Any:
    def text(row: Row) -> str:
        value = highest(row["max"][key]) if peak else mean(row[key])
        return "" if value is None else f"{value:.0f}{unit}"

    return text


def _megabytes(key: str, *, peak: bool) -> Any:
    return lambda row: memory(highest(row["max"][key]) if peak else mean(row[key]))


def _columns(metric: str) -> tuple[Column, ...]:
    key = METRICS[metric]
    top = 100.0 if metric == "utilization" else None
    return (
        Column("NODE", lambda row: str(row["node"]), stretches=True),
        Column("GPU", lambda row: "" if row["index"] is None else str(row["index"]), right=True),
        Column(metric.upper(), lambda row: spark(row["max"][key], width=_WIDTH, most=top)),
        Column("UTIL", _whole("utilization_percent", "%", peak=False), right=True),
        Column("PEAK", _whole("utilization_percent", "%", peak=True), right=True),
        Column("MEM", _megabytes("memory_used_mb", peak=False), right=True),
        Column("MEM-PEAK", _megabytes("memory_used_mb", peak=True), right=True),
        Column("RESERVED", _megabytes("memory_reserved_mb", peak=False), right=True, wide=True),
        Column("FOREIGN", _megabytes("memory_foreign_mb", peak=True), right=True, wide=True),
        Column("TEMP-PEAK", _whole("temperature_c", "°C", peak=True), right=True),
        Column("POWER", _whole("power_w", "W", peak=False), right=True),
        Column("MODEL", lambda row: str(row["model"] or ""), wide=True),
        Column("UUID", lambda row: str(row["gpu"]), wide=True),
    )


_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NODE|GPU|TASK", help="Nodes, NODE:INDEX, UUIDs, or one task. [all, up to 64 GPUs]"
    ),
]
_Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="T",
        help="An age (6h), 14:05, or 2026-07-30 12:00 (local time). [1h, or a task's start]",
    ),
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="T", help="As --since. [now, or a task's end]")
]


@app.command()
def history(
    ctx: typer.Context,
    names: _Names = None,
    since: _Since = None,
    until: _Until = None,
    metric: Annotated[
        str, typer.Option("--metric", "-m", metavar="|".join(METRICS), help="The value to show.")
    ] = "utilization",
) -> None:
    """Measurements of GPUs: a curve for each, with means and peaks. For usage: dgpu report.

    With the id of a task: its GPUs, from the start to the end of its last attempt.
    """
    if metric not in METRICS:
        raise typer.BadParameter(f"{metric!r} is not one of {', '.join(METRICS)}", param_hint="--metric")
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        known = builtins(client.gpus())["gpus"]
        if task_id := _task_of(known, names or []):
            ids, start, end = _run_of(client, task_id)
        else:
            ids, start, end = _chosen(known, names or []), "1h", None
        begin, until_then = since or start, until or end
        asked = {
            "since": in_our_zone(begin),
            "until": until_then and in_our_zone(until_then),
            "step": _step(begin, until_then),
        }
        cluster = builtins(client.cluster_history(**asked))
        shown = ids if len(ids) <= _MAX_GPUS else []
        answer = builtins(client.gpus_history(shown, **asked)) if shown else {**cluster, "gpus": []}
        _show(cluster, answer, metric, flags)
        if len(ids) > _MAX_GPUS:
            note(f"{plural(len(ids), 'GPU')}: name nodes or GPUs to see each, at most {_MAX_GPUS} at once.")

    repeat(draw, flags)


def _show(cluster: dict[str, Any], answer: dict[str, Any], metric: str, flags: Flags) -> None:
    whole = {**cluster, "gpu": "", "node": "(cluster)", "index": None, "model": ""}
    document = {"cluster": cluster, "gpus": answer["gpus"]}
    rows = [whole, *answer["gpus"]] if flags.is_table else answer["gpus"]
    print_rows(document, rows, _columns(metric), "gpu", flags)
    if flags.is_table:
        note(
            f"{period(answer['since'], answer['until'])}, a point every {cluster['step_seconds']} s; "
            f"· means: no data."
        )


def _task_of(known: list[dict[str, Any]], names: list[str]) -> str | None:
    """The task that is meant, if no node or GPU has this name."""
    tasks = [name for name in names if parse_named(name) is not None and not _matching(known, name)]
    if tasks and len(names) > 1:
        raise CliFailure(
            f"{tasks[0]} is a task; its history is shown alone: dgpu history {tasks[0]}", ExitCode.USAGE
        )
    return parse_ids(tasks)[0] if tasks else None


def _run_of(client: Client, task_id: str) -> tuple[list[str], str, str | None]:
    """The GPUs of its last attempt, and the range of the curves."""
    task = client.get(task_id)
    name = task_id.removeprefix("task-")
    if task.array is not None and task.array.count > 1:
        raise CliFailure(f"{task_id} is an array; name one of its tasks, like {name}_0.", ExitCode.USAGE)
    last = task.attempts[-1] if task.attempts else None
    gpus = task.allocated_gpus or (last.gpus if last is not None else [])
    start = last.started_at if last is not None and last.started_at else task.started_at
    if not start or not gpus:
        why = "has not started" if not start else "has used no GPU"
        raise CliFailure(
            f"{task_id} {why}, so there is no history of it: dgpu show {name}", ExitCode.NOT_FOUND
        )
    ended = last.ended_at if last is not None and not task.allocated_gpus else task.finished_at
    if len(gpus) > _MAX_GPUS:
        note(f"{task_id} has {len(gpus)} GPUs; the first {_MAX_GPUS} are shown.")
    return gpus[:_MAX_GPUS], _moved(start, -_MARGIN), _moved(ended, _MARGIN) if ended else None


def _moved(at: str, by: dt.timedelta) -> str:
    """Not beyond the present."""
    moved = min(dt.datetime.fromisoformat(at) + by, dt.datetime.now(dt.UTC))
    return moved.isoformat(timespec="milliseconds")


def _matching(known: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    found = [gpu for gpu in known if name in {gpu["node"], f"{gpu['node']}:{gpu['index']}"}]
    return found or [gpu for gpu in known if gpu["uuid"].lower().startswith(name.lower())]


def _chosen(known: list[dict[str, Any]], names: list[str]) -> list[str]:
    if not names:
        return [str(gpu["uuid"]) for gpu in known]
    chosen: dict[str, None] = {}
    for name in names:
        if matching := _matching(known, name):
            chosen.update(dict.fromkeys(str(gpu["uuid"]) for gpu in matching))
        else:
            chosen[name] = None  # perhaps a removed GPU: the server knows
    if len(chosen) > _MAX_GPUS:
        raise CliFailure(
            f"These are {len(chosen)} GPUs; at most {_MAX_GPUS} can be shown at once.", ExitCode.USAGE
        )
    return list(chosen)


def _step(since: str, until: str | None) -> str | None:
    """A step that gives no more points than the terminal has columns."""
    if until is not None:
        return None
    try:
        seconds = parse_duration(since)
    except typer.BadParameter:
        return None
    return str(max(10, int(seconds / _WIDTH / 3) // 10 * 10))
