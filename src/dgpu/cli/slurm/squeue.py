"""squeue: waiting and running tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dgpu.cli.arguments import parse_ids
from dgpu.cli.slurm import jobs
from dgpu.cli.slurm.reading import FLAG, VALUE, me, read, scheduler, tasks_of, words_of
from dgpu.cli.slurm.tables import lines, parse_format

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
TAKES = {
    "account": VALUE, "array": FLAG, "format": VALUE, "help": FLAG, "jobs": VALUE, "long": FLAG, "me": FLAG,
    "name": VALUE, "noheader": FLAG, "nodelist": VALUE, "partition": VALUE, "start": FLAG, "states": VALUE,
    "user": VALUE,
}  # fmt: skip
SHORT = {
    "A": "account", "r": "array", "o": "format", "j": "jobs", "l": "long", "n": "name", "h": "noheader",
    "w": "nodelist", "p": "partition", "t": "states", "u": "user",
}  # fmt: skip
_STATUSES = {"PENDING": "pending", "RUNNING": "running", "COMPLETING": "running"}


def run(arguments: Sequence[str]) -> int:
    given, _ = read(arguments, TAKES, SHORT)
    if "help" in given:
        sys.stdout.write(f"squeue {' '.join(f'[--{name}]' for name in TAKES)}\n")
        return 0
    form = given.get("format") or (LONG if "long" in given else FORMAT)
    fields = _fields(datetime.now(UTC))
    cells = parse_format(form, fields, "squeue")
    wanted = _filter(given)
    found = (task for task in _tasks(scheduler(), given) if wanted(task))
    rows = sorted(found, key=lambda task: (task.status != "pending", int(task.task_id.removeprefix("task-"))))
    for line in lines(cells, fields, rows, header="noheader" not in given):
        sys.stdout.write(line + "\n")
    return 0


def _tasks(client: Client, given: dict[str, str]) -> Iterable[TaskAnswer]:
    states = jobs.state_names(given.get("states", "PENDING,RUNNING,COMPLETING"))
    statuses = {_STATUSES.get(state, "") for state in states}
    return client.list() if "" in statuses else tasks_of(client, sorted(statuses))


def _filter(given: dict[str, str]) -> Callable[[TaskAnswer], bool]:
    states = jobs.state_names(given.get("states", "PENDING,RUNNING,COMPLETING"))
    users = set(words_of(given.get("user", ""))) | ({me()} if "me" in given else set())
    ids = set(parse_ids(words_of(given.get("jobs", ""))))
    names, accounts = set(words_of(given.get("name", ""))), set(words_of(given.get("account", "")))
    pools, nodes = set(words_of(given.get("partition", ""))), set(words_of(given.get("nodelist", "")))

    def wanted(task: TaskAnswer) -> bool:
        element = f"task-{jobs.job_id(task)}"
        return (
            jobs.state(task) in states
            and (not users or jobs.user(task) in users)
            and (not ids or bool({task.task_id, task.array_id, element} & ids))
            and (not names or task.name in names)
            and (not accounts or task.tenant_id in accounts)
            and (not pools or task.pool in pools)
            and (not nodes or bool(nodes & set(task.allocated_nodes)))
        )

    return wanted


def _fields(now: datetime) -> dict[str, tuple[str, Callable[[TaskAnswer], str]]]:
    return {
        "i": ("JOBID", jobs.job_id),
        "A": ("JOBID", lambda task: task.task_id.removeprefix("task-")),
        "F": ("ARRAY_JOB_ID", lambda task: (task.array_id or task.task_id).removeprefix("task-")),
        "K": ("ARRAY_TASK_ID", lambda task: "N/A" if task.array_index is None else str(task.array_index)),
        "P": ("PARTITION", lambda task: task.pool),
        "j": ("NAME", lambda task: task.name),
        "u": ("USER", jobs.user),
        "a": ("ACCOUNT", lambda task: task.tenant_id),
        "t": ("ST", lambda task: jobs.STATES[jobs.state(task)]),
        "T": ("STATE", jobs.state),
        "M": ("TIME", lambda task: jobs.clock(jobs.time_used(task, now))),
        "l": ("TIME_LIMIT", lambda task: jobs.clock(task.timeout_seconds)),
        "D": ("NODES", lambda task: str(task.nodes)),
        "C": ("CPUS", lambda task: f"{task.cpus:g}"),
        "m": ("MIN_MEMORY", lambda task: f"{task.ram_mb}M"),
        "b": ("TRES_PER_NODE", jobs.gres),
        "Q": ("PRIORITY", lambda task: str(task.priority_value)),
        "p": ("PRIORITY", lambda task: str(task.priority_value)),
        "R": ("NODELIST(REASON)", jobs.place_or_reason),
        "N": ("NODELIST", lambda task: ",".join(task.allocated_nodes)),
        "r": ("REASON", lambda task: task.waiting or "None"),
        "S": ("START_TIME", lambda task: jobs.instant(task.started_at).replace("Unknown", "N/A")),
        "V": ("SUBMIT_TIME", lambda task: jobs.instant(task.created_at)),
        "Z": ("WORK_DIR", lambda task: task.workdir),
        "o": ("COMMAND", jobs.command),
    }
