from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import command_text, parse_ids
from dgpu.cli.arrays import result
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import between, clock, duration, limit, memory, plural
from dgpu.cli.output import print_document, print_fields
from dgpu.cli.ps import far_of
from dgpu.cli.why import reservation
from dgpu.client.language import error_text, told

app = typer.Typer(add_completion=False)

PLAIN = ("name", "tenant_id", "pool", "status", "reason", "error", "waiting", "priority", "gpu_count")
MORE = ("model_name", "task_type", "structure_n_atoms")


@app.command()
def show(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
) -> None:
    """Details of tasks: demands, runs and results."""
    flags = flags_of(ctx)
    client = connect(flags)
    names = parse_ids(ids)
    for_each(names, lambda task_id: builtins(client.get(task_id)), lambda tasks: _print(names, tasks, flags))


def _print(names: list[str], tasks: list[dict[str, Any]], flags: Flags) -> None:
    if flags.output == "name":
        typer.echo("\n".join(task["task_id"] for task in tasks))
    elif not flags.is_table:
        print_document(tasks, flags)
    else:
        for place, task in enumerate(tasks):
            if place:
                typer.echo()
            print_fields(fields(task, wide=flags.output == "wide"))
        if len(names) == 1 and tasks[0]["status"] == "pending":
            note(f"Why it waits: dgpu why {tasks[0]['task_id'].removeprefix('task-')}")


def fields(task: dict[str, Any], *, wide: bool = False) -> list[tuple[str, str]]:
    exit_code = task["exit_code"]
    flags = [
        name for name in ("allocation", "held", "cancelling", "read_only_root", "terminal") if task[name]
    ]
    return [
        ("task", task["task_id"]),
        *((name.removesuffix("_id").replace("_", " "), _plain(task, name)) for name in PLAIN),
        ("gpu model", " or ".join(task["gpu_model"])),
        ("gpu memory", memory(task["gpu_memory_mb"] or None)),
        ("shared", f"{task['gpu_share']:g} of a GPU at least" if task["shared"] else ""),
        ("constraints", ", ".join(task["constraints"])),
        ("cpus", _text(task["cpus"] or "")),
        ("ram", memory(task["ram_mb"] or None)),
        ("nodes", "" if task["nodes"] == 1 else str(task["nodes"])),
        ("after", ", ".join(f"{each['task_id']} ({each['when']})" for each in task["after"])),
        ("array", _array(task)),
        ("progress", result(task) if task.get("array") else far_of(task).removeprefix(", ")),
        ("worker", task.get("worker") or ""),
        ("reservation", reservation(task["reservation"]) if task.get("reservation") else ""),
        ("node", ", ".join(task["allocated_nodes"]) or task["node"] or ""),
        ("gpus", ", ".join(task["allocated_gpu_names"])),
        ("gpu uuids", "\n".join(task["allocated_gpus"]) if wide else ""),
        ("attempt", f"{task['attempt']} ({task['retries']} of {task['max_retries']} retries used)"),
        ("restart", task["restart"]),
        ("exit code", "" if exit_code is None else str(exit_code)),
        ("submitted", clock(task["created_at"])),
        ("begins", clock(task["begin_at"]) if task["begin_at"] else ""),
        ("waited", duration(between(task["created_at"], task["started_at"]))),
        ("started", clock(task["started_at"])),
        ("finished", clock(task["finished_at"])),
        ("ran", duration(between(task["started_at"], task["finished_at"]))),
        *usage_rows(task.get("usage")),
        ("time limit", limit(task["timeout_seconds"])),
        ("signal", task["signal"] and f"{task['signal'].replace('@', ', ')} s before the time limit"),
        ("grace", duration(task["grace_seconds"])),
        ("notify", " ".join(task["notify"])),
        *_program(task),
        ("env", ", ".join(sorted(task["env"]))),
        ("secrets", ", ".join(sorted(task["secrets"]))),
        ("labels", ", ".join(f"{name}={value}" for name, value in task["labels"].items())),
        *((name.replace("_", " "), _text(task[name] or "")) for name in MORE),
        ("also", ", ".join(flags)),
    ]


def _program(task: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("function", task.get("entrypoint") or ""),
        ("command", command_text(task["command"])),
        ("script", f"{plural(task['script_bytes'], 'byte')}, sent at submit" if task["script_bytes"] else ""),
        ("workdir", _workdir(task)),
        ("upload", task["upload"]),
        ("output file", task["output_file"]),
        ("error file", task["error_file"]),
        ("ports", ", ".join(map(str, task["ports"]))),
        ("image", task["image"]),
        ("mounts", ", ".join(task["mounts"])),
        ("shared memory", memory(task["shm_mb"] or None)),
    ]


def _plain(task: dict[str, Any], name: str) -> str:
    text = _text(task[name])
    if name == "error":
        return error_text(text)
    if name == "priority" and isinstance(task[name], str):
        return f"{text} ({task['priority_value']})"
    return text


def _workdir(task: dict[str, Any]) -> str:
    """The path, with its node as soon as there is one."""
    nodes = task["allocated_nodes"] or ([task["node"]] if task["node"] else [])
    return f"{nodes[0]}:{task['workdir']}" if nodes and task["workdir"] else task["workdir"]


def _array(task: dict[str, Any]) -> str:
    if task["array_id"] is None:
        return ""
    most = f", {task['array_limit']} at a time" if task["array_limit"] else ""
    return f"{task['array_id']}, index {task['array_index']} of {task['array_count']} tasks{most}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def usage_rows(usage: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What its last attempt used, or uses so far; nothing before it was measured."""
    if not usage:
        return []
    mean, p95, cpu = usage["gpu_percent"], usage["gpu_percent_p95"], usage["cpu_efficiency_percent"]
    so_far = " so far" if usage["so_far"] else ""
    of_cpus = "" if cpu is None else f" ({cpu:g} % of its CPUs)"
    return [
        ("gpu use", "" if mean is None else f"{mean} % on average, {p95} % at p95{so_far}"),
        ("gpu memory peak", _measured(memory(usage["gpu_peak_mb"]), so_far)),
        (
            "cpu time",
            "" if usage["cpu_seconds"] is None else duration(usage["cpu_seconds"]) + of_cpus + so_far,
        ),
        ("memory peak", _measured(memory(usage["rss_peak_mb"]), so_far)),
        (
            "advice",
            "\n".join(
                told("advice", each["code"], each["facts"], each["detail"]) for each in usage["advice"]
            ),
        ),
    ]


def _measured(text: str, so_far: str) -> str:
    return text and text + so_far
