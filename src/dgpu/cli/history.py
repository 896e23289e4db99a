from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock, in_our_zone, memory, plural
from dgpu.cli.output import Column, Row, print_rows, repeat
from dgpu.cli.sparks import highest, mean, spark

app = typer.Typer(add_completion=False)

METRICS = {
    "utilization": "utilization_percent",
    "memory": "memory_used_mb",
    "temperature": "temperature_c",
    "power": "power_w",
}
_WIDTH = 40
_MAX_GPUS = 64  # per request


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


@app.command()
def history(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE|GPU", help="Nodes, NODE:INDEX, or UUIDs. [all, up to 64 GPUs]"),
    ] = None,
    since: Annotated[
        str,
        typer.Option("--since", metavar="T", help="An age (30d, 6h), or 2026-07-30 12:00 (local time)."),
    ] = "1h",
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="As --since. [now]")] = None,
    metric: Annotated[
        str, typer.Option("--metric", "-m", metavar="|".join(METRICS), help="The value to show.")
    ] = "utilization",
) -> None:
    """Measurements of GPUs: a curve for each, with means and peaks. For usage: dgpu report."""
    if metric not in METRICS:
        raise typer.BadParameter(f"{metric!r} is not one of {', '.join(METRICS)}", param_hint="--metric")
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        ids = _chosen(builtins(client.gpus())["gpus"], names or [])
        asked = {
            "since": in_our_zone(since),
            "until": until and in_our_zone(until),
            "step": _step(since, until),
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
            f"{clock(answer['since'])} to {clock(answer['until'])}, a point every {cluster['step_seconds']} s; "
            f"· means: no data."
        )


def _chosen(known: list[dict[str, Any]], names: list[str]) -> list[str]:
    if not names:
        return [str(gpu["uuid"]) for gpu in known]
    chosen: dict[str, None] = {}
    for name in names:
        matching = [gpu for gpu in known if name in {gpu["node"], f"{gpu['node']}:{gpu['index']}"}]
        matching = matching or [gpu for gpu in known if gpu["uuid"].lower().startswith(name.lower())]
        if matching:
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
