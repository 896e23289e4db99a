from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dgpu.cli.arguments import command_text, parse_ids, parse_labels, parse_priority
from dgpu.cli.arrays import progress, state_of
from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import between, clock, duration, limit, memory, since
from dgpu.cli.output import Column, Row, print_rows, repeat
from dgpu.cli.reasons import short_reason
from dgpu.cli.task_pages import collect, count, id_of, pass_on
from dgpu.client.language import told, waiting
from dgpu.client.surroundings import login_name
from dgpu.wire import isolation

if TYPE_CHECKING:
    from dgpu.client.sync import Client

app = typer.Typer(add_completion=False)

STATES = ("pending", "running", "success", "failed", "cancelled")
_OF_AN_ARRAY = ("failed", "cancelled", "running", "pending", "success")  # what needs attention comes first
_SCREEN_ROWS = 100
_PIPE_ROWS = 10_000  # a longer table takes many seconds
_SEARCHED = frozenset({"user", "name", "label", "node", "array"})


def name_of(row: Row) -> str:
    name = str(
        row["name"]
        or row.get("entrypoint")
        or command_text(row["command"])
        or ("allocation" if row["allocation"] else "")
    )
    return name if row["array_index"] is None else f"[{row['array_index']}] {name}"


def gpus_of(row: Row) -> str:
    """For several nodes: nodes x GPUs per node."""
    return str(row["gpu_count"]) if row["nodes"] == 1 else f"{row['nodes']}x{row['gpu_count']}"


def place_of(row: Row, *, short: bool = False) -> str:
    """Where the task runs, why it waits, or how it ended; of an array, its progress."""
    if row.get("array") is not None:
        waits = row["status"] == "pending" and not row["array"]["running"]
        why = f": {_reason_of(row, short=short)}" if waits else ""
        return f"{progress(row['array'])}{why}"
    if row["status"] == "pending":
        return _reason_of(row, short=short)
    if row["status"] == "running":
        stopping = ", being cancelled" if row["cancelling"] else ""
        where = (
            waiting(row["blockers"], row["waiting"])
            or ", ".join(row["allocated_nodes"])
            or row["node"]
            or "being placed"
        )
        return f"{where}{stopping}{far_of(row)}"
    if row["status"] == "success":
        return str(row["node"] or "")
    return told("ended", str(row["reason"]), row, str(row["error"] or row["reason"] or ""))


def far_of(row: Row) -> str:
    """How far a function is, if it says so: `, 40 % epoch 2`."""
    said = row.get("progress")
    return f", {said['fraction']:.0%} {said['text']}".replace("%", " %").rstrip() if said else ""


def _reason_of(row: Row, *, short: bool) -> str:
    if short:
        return short_reason(row)
    return waiting(row["blockers"], row["waiting"]) or str(row["reason"] or "waits for its turn")


def time_of(row: Row) -> str:
    """How long the task has waited, runs or ran; of an array, the time since its submit until it ends."""
    if row.get("array") is not None:
        return duration(since(row["created_at"])) if state_of(row) in {"running", "pending"} else ""
    if row["status"] == "pending":
        return duration(since(row["created_at"]))
    if row["status"] == "running":
        return duration(since(row["started_at"])) or "starting"
    return duration(between(row["started_at"], row["finished_at"]))


def exit_of(row: Row) -> str:
    return "" if row["exit_code"] is None else str(row["exit_code"])


def _title_of(row: Row) -> str:
    """The name without the index, which is in the id. The name of an array has no values of a grid."""
    if row.get("array") is not None and row.get("grid"):
        values = " ".join(f"{key}={value}" for key, value in row["grid"].items())
        row = {**row, "name": row["name"].removesuffix(values).rstrip()}
    return name_of({**row, "array_index": None})


def _columns(*, wide: bool) -> tuple[Column, ...]:
    return (
        Column("ID", id_of),
        Column("NAME", _title_of, stretches=True),
        Column("STATUS", state_of),
        Column("PRI", lambda row: str(row["priority"]), right=True, needs=80),
        Column("GPUS", gpus_of, right=True, needs=72),
        Column("TIME", time_of, right=True),
        Column("TENANT", lambda row: str(row["tenant_id"]), wide=True),
        Column("POOL", lambda row: str(row["pool"]), wide=True),
        Column("MEM", lambda row: memory(row["gpu_memory_mb"] or None), wide=True, right=True),
        Column("LIMIT", lambda row: limit(row["timeout_seconds"]), wide=True, right=True),
        Column("USER", lambda row: str(row["labels"].get("user", "")), wide=True),
        Column("TRY", lambda row: str(row["attempt"]), wide=True, right=True),
        Column("EXIT", exit_of, wide=True, right=True),
        Column("SUBMITTED", lambda row: clock(row["created_at"]), wide=True),
        Column("GPU IDS", lambda row: ",".join(row["allocated_gpu_names"]), wide=True),
        Column("WHERE OR WHY", lambda row: place_of(row, short=not wide), stretches=True),
    )


class _Asked(NamedTuple):
    """The list that the user wants."""

    states: tuple[str, ...]  # in this order; empty: all
    filters: Mapping[str, Any]
    names: Sequence[str]  # of tasks and arrays; empty: all
    most: int
    whole: str  # the command that shows the complete list
    fold: bool


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="These tasks. Of an array, all of its tasks, failed ones first."),
]
AllTasks = Annotated[bool, typer.Option("--all", "-a", help="Include ended tasks.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-A", metavar="T", help="Only this tenant.")]
States = Annotated[
    list[str] | None,
    typer.Option("--status", "-s", metavar="STATE", help=f"{', '.join(STATES)}; several: failed,cancelled."),
]
User = Annotated[str | None, typer.Option("--user", "-u", metavar="U", help="Of this user.")]
Mine = Annotated[bool, typer.Option("--mine", help="Your own tasks.")]
Name = Annotated[
    str | None, typer.Option("--name", "-J", metavar="NAME", help="With this name; * stands for anything.")
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="K=V", help="With this label; repeated: with all.")
]
OfNode = Annotated[str | None, typer.Option("--node", metavar="N", help="That run or last ran on this node.")]
OfArray = Annotated[str | None, typer.Option("--array", metavar="ID", help="Tasks of this array.")]
OfPool = Annotated[str | None, typer.Option("--pool", metavar="online|batch")]
Priority = Annotated[str | None, typer.Option("--priority", "-p", metavar="P", help="Only this priority.")]
Expand = Annotated[
    bool, typer.Option("--expand", "-x", help="Every task of an array, instead of one row for the array.")
]
Most = Annotated[
    int | None,
    typer.Option(
        "--limit", metavar="N", min=0, help="Maximum number of rows; 0: all. [100; in a pipe 10,000]"
    ),
]


@app.command()
def ps(
    ctx: typer.Context,
    ids: Ids = None,
    all_tasks: AllTasks = False,
    tenant: Tenant = None,
    states: States = None,
    user: User = None,
    mine: Mine = False,
    name: Name = None,
    labels: Labels = None,
    node: OfNode = None,
    array: OfArray = None,
    pool: OfPool = None,
    priority: Priority = None,
    expand: Expand = False,
    most: Most = None,
) -> None:
    """Running and waiting tasks, with the place of the run or the reason of the wait. -a includes ended tasks.

    An array is one row with its progress. JSON and -o name always have every task.
    """
    flags = flags_of(ctx)
    if mine and user:
        raise typer.BadParameter("--mine and --user exclude each other")
    chosen, names = _states(states or ()), parse_ids(ids or ())
    if most is None:
        most = (_SCREEN_ROWS if sys.stdout.isatty() else _PIPE_ROWS) if flags.is_table else 0
    filters = {
        "tenant": tenant,
        "pool": pool,
        "priority": parse_priority(priority) if priority else None,
        "user": user,
        "name": name,
        "label": ",".join(f"{key}={value}" for key, value in parse_labels(labels or ()).items()) or None,
        "node": node,
        "array": parse_ids([array])[0] if array else None,
    }
    client = connect(flags)
    asked = _Asked(
        states=chosen or (_OF_AN_ARRAY if array or names else () if all_tasks else ("running", "pending")),
        filters={**filters, "user": _me(client)} if mine else filters,
        names=names,
        most=most,
        whole=shlex.join(["dgpu", "ps", *_said(ctx), "--limit", "0"]),
        fold=not (expand or array or names) and flags.is_table,
    )
    repeat(lambda: _draw(client, asked, flags), flags)


def _me(client: Client) -> str:
    """As tasks of this user are labelled."""
    known = client.whoami()
    return login_name() if known.source == "open" else known.user


def _said(ctx: typer.Context) -> Iterator[str]:
    """The arguments and options of this call, but --limit."""
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if not value or param.name == "most":
            continue
        flag = min(param.opts, key=len) if param.param_type_name == "option" else ""
        if value is True:
            yield flag
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            yield from (flag, each) if flag else (each,)


def _states(given: Sequence[str]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for text in given for word in text.split(",")))
    for word in words:
        if word not in STATES:
            raise typer.BadParameter(f"{word!r} is not one of {', '.join(STATES)}", param_hint="--status")
    return words


def _draw(client: Client, asked: _Asked, flags: Flags) -> None:
    if asked.names:
        rows, hidden = _of_names(client, asked)
    else:
        lists = [{**asked.filters, "status": state} for state in asked.states or (None,)]
        if not asked.most and flags.output in {"json", "name"}:
            number = count(client, lists)
            if number is None or number > _PIPE_ROWS:
                pass_on(client, lists, flags.output)
                return
        rows, hidden = _of_lists(client, lists, asked.most, fold=asked.fold)
    if flags.output == "name":
        sys.stdout.write("".join(f"{id_of(row)}\n" for row in rows))
        return
    total = len(rows) + (hidden or 0)
    columns = _columns(wide=flags.output == "wide")
    print_rows({"tasks": rows, "total": total}, rows, columns, "task_id", flags)
    if flags.is_table:
        _tell(len(rows), hidden, "running" in asked.states and not asked.names, asked.whole)
        _tell_boundary(client)


def _of_lists(
    client: Client, lists: Sequence[dict[str, Any]], most: int, *, fold: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """The rows, and how many tasks are not shown; None: unknown. An array is shown once, in the first state it has."""
    rows: list[dict[str, Any]] = []
    folded: set[str] = set()
    hidden: int | None = 0
    for each in lists:
        is_search = any(each.get(name) for name in _SEARCHED)
        asked = {**each, "fold": "true"} if fold else each
        found, total = collect(client, asked, most - len(rows) if most else None)
        if hidden is not None:
            shown = len(found) if is_search else sum(_stands_for(row, each["status"]) for row in found)
            hidden = None if total is None else hidden + max(0, total - shown)
        found = [row for row in found if row.get("array") is None or row["array_id"] not in folded]
        folded.update(row["array_id"] for row in found if row.get("array") is not None)
        rows += sorted(found, key=_number)  # pages have the newest first; a reader looks at the end
    return rows, hidden


def _of_names(client: Client, asked: _Asked) -> tuple[list[dict[str, Any]], int | None]:
    rows: list[dict[str, Any]] = []
    hidden: int | None = 0
    for name in asked.names:
        task = client.get(name)
        if task.array is None:
            rows += [builtins(task)]
            continue
        for state in asked.states:
            number = getattr(task.array, state)
            if not number:
                continue
            wanted = {**asked.filters, "array": name, "status": state, "sort": "oldest"}
            found, _ = collect(client, wanted, asked.most - len(rows) if asked.most else None)
            rows += sorted(found, key=_number)
            if hidden is not None:
                hidden += max(0, number - len(found))
    return rows, hidden


def _stands_for(row: Mapping[str, Any], state: str | None) -> int:
    """Tasks of this state."""
    array = row.get("array")
    if array is None:
        return 1
    return int(array["count"] if state is None else array[state])


def _tell_boundary(client: Client) -> None:
    from dgpu.client.errors import DgpuError

    with contextlib.suppress(DgpuError):  # the list is there already
        if notice := isolation.NOTICES.get(client.whoami().isolation):
            note(notice)


def _number(row: Row) -> int:
    return int(row["task_id"].removeprefix("task-"))


def _tell(shown: int, hidden: int | None, only_active: bool, whole: str) -> None:
    if hidden is None:
        note(f"… and more ({whole})")
    elif hidden:
        note(f"… {hidden:,} more ({whole})")
    elif not shown and only_active:
        note("No running or waiting tasks. Ended tasks: dgpu ps -a")
    elif not shown:
        note("No such task.")
