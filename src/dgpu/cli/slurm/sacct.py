"""sacct: tasks with their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from dgpu.cli.arguments import parse_ids
from dgpu.cli.failures import CliFailure
from dgpu.cli.formats import moment
from dgpu.cli.slurm import jobs
from dgpu.cli.slurm.reading import FLAG, VALUE, me, read, scheduler, words_of

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

FORMAT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
MAX_ROWS = 10_000
TAKES = {
    "accounts": VALUE, "allocations": FLAG, "allusers": FLAG, "array": FLAG, "brief": FLAG, "format": VALUE,
    "jobs": VALUE, "name": VALUE, "noheader": FLAG, "parsable": FLAG, "parsable2": FLAG, "starttime": VALUE,
    "state": VALUE, "user": VALUE,
}  # fmt: skip
SHORT = {
    "A": "accounts", "X": "allocations", "a": "allusers", "b": "brief", "o": "format", "j": "jobs", "n": "noheader",
    "p": "parsable", "P": "parsable2", "S": "starttime", "s": "state", "u": "user",
}  # fmt: skip


def run(arguments: Sequence[str]) -> int:
    given, _ = read(arguments, TAKES, SHORT)
    form = given.get("format") or ("JobID,State,ExitCode" if "brief" in given else FORMAT)
    columns = [_column(text) for text in words_of(form)]
    rows = [task for task in islice(_tasks(scheduler(), given), MAX_ROWS) if _wanted(task, given)]
    table = [[read_field(task) for _, read_field, _ in columns] for task in reversed(rows)]
    titles = [title for title, _, _ in columns]
    widths = [width for _, _, width in columns]
    if "parsable" in given or "parsable2" in given:
        end = "|" if "parsable" in given else ""
        shown = ["|".join(row) + end for row in ([] if "noheader" in given else [titles]) + table]
    else:
        rule = [] if "noheader" in given else [titles, ["-" * width for width in widths]]
        shown = [
            " ".join(text[:width].rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rule + table
        ]
    sys.stdout.write("".join(f"{line}\n" for line in shown))
    return 0


def _column(text: str) -> tuple[str, Callable[[TaskAnswer], str], int]:
    """`State`, or `JobName%30` with a width."""
    name, _, width = text.partition("%")
    known = {title.lower(): title for title in FIELDS}
    title = known.get(name.lower())
    if title is None:
        raise CliFailure(f"{name} of the format is not supported; sacct knows {' '.join(sorted(FIELDS))}")
    digits = width.removeprefix("-")
    return title, FIELDS[title], int(digits) if digits.isdecimal() and int(digits) else 12


def _tasks(client: Client, given: dict[str, str]) -> Iterator[TaskAnswer]:
    """With ids, those; otherwise tasks since the start time, by default since midnight."""
    ids = parse_ids(words_of(given.get("jobs", "")))
    if ids:
        for task_id in ids:
            task = client.get(task_id)
            whole_array = task.array_id == task.task_id and "_" not in task_id
            yield from client.list(array=task.task_id) if whole_array else [task]
        return
    since = _since(given.get("starttime", ""))
    for task in client.list():
        created = moment(task.created_at)
        if created is not None and created < since:
            return
        yield task


def _since(text: str) -> datetime:
    if not text or text == "today":
        return datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise CliFailure(
            f"--starttime: expected a time like 2026-07-30 or 2026-07-30T22:00, got {text!r}"
        ) from None


def _wanted(task: TaskAnswer, given: dict[str, str]) -> bool:
    users = set(words_of(given.get("user", "")))
    if not users and "jobs" not in given and "allusers" not in given:
        users = {me()}
    states = jobs.state_names(given["state"]) if "state" in given else set()
    names, accounts = set(words_of(given.get("name", ""))), set(words_of(given.get("accounts", "")))
    return (
        (not users or jobs.user(task) in users)
        and (not states or jobs.state(task) in states)
        and (not names or task.name in names)
        and (not accounts or task.tenant_id in accounts)
    )


def _elapsed(task: TaskAnswer) -> str:
    seconds = int(jobs.time_used(task, datetime.now(UTC)))
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


FIELDS: dict[str, Callable[[TaskAnswer], str]] = {
    "JobID": jobs.job_id,
    "JobIDRaw": lambda task: task.task_id.removeprefix("task-"),
    "JobName": lambda task: task.name,
    "Partition": lambda task: task.pool,
    "Account": lambda task: task.tenant_id,
    "User": jobs.user,
    "AllocCPUS": lambda task: f"{task.cpus * task.nodes:g}",
    "ReqCPUS": lambda task: f"{task.cpus * task.nodes:g}",
    "ReqMem": lambda task: f"{task.ram_mb}M",
    "AllocNodes": lambda task: str(len(task.allocated_nodes)),
    "NNodes": lambda task: str(task.nodes),
    "NodeList": lambda task: ",".join(task.allocated_nodes) or "None assigned",
    "ReqTRES": jobs.gres,
    "AllocTRES": lambda task: f"gres/gpu={len(task.allocated_gpus)}" if task.allocated_gpus else "",
    "State": jobs.state,
    "ExitCode": jobs.exit_code,
    "Elapsed": _elapsed,
    "ElapsedRaw": lambda task: str(int(jobs.time_used(task, datetime.now(UTC)))),
    "Timelimit": lambda task: jobs.clock(task.timeout_seconds),
    "Submit": lambda task: jobs.instant(task.created_at),
    "Start": lambda task: jobs.instant(task.started_at),
    "End": lambda task: jobs.instant(task.finished_at),
    "WorkDir": lambda task: task.workdir,
    "Priority": lambda task: str(task.priority_value),
    "Reason": lambda task: task.waiting or task.reason or "None",
    "Restarts": lambda task: str(max(0, task.attempt - 1)),
    "SubmitLine": jobs.command,
}
