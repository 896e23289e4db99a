"""scancel: cancels tasks by id, or all of a user, a name or a state."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.cli.arguments import parse_ids
from dgpu.cli.failures import CliFailure
from dgpu.cli.slurm import jobs
from dgpu.cli.slurm.reading import FLAG, VALUE, me, read, scheduler, tasks_of, words_of

TAKES = {
    "account": VALUE, "jobname": VALUE, "name": VALUE, "me": FLAG, "quiet": FLAG, "state": VALUE, "user": VALUE,
    "verbose": FLAG,
}  # fmt: skip
SHORT = {"A": "account", "n": "name", "Q": "quiet", "t": "state", "u": "user", "v": "verbose"}


def run(arguments: Sequence[str]) -> int:
    given, words = read(arguments, TAKES, SHORT)
    users = set(words_of(given.get("user", ""))) | ({me()} if "me" in given else set())
    names = set(words_of(given.get("name", given.get("jobname", ""))))
    accounts = set(words_of(given.get("account", "")))
    states = jobs.state_names(given["state"]) if "state" in given else set()
    filtered = bool(users or names or accounts or states)
    if not words and not filtered:
        raise CliFailure("a job id, --user, --me, --name, --account or --state is missing")
    client = scheduler()
    ids = parse_ids(words)
    if filtered:
        ids = [
            task.task_id
            for task in tasks_of(client, ("pending", "running"))
            if (not users or jobs.user(task) in users)
            and (not names or task.name in names)
            and (not accounts or task.tenant_id in accounts)
            and (not states or jobs.state(task) in states)
            and (not words or {task.task_id, task.array_id, f"task-{jobs.job_id(task)}"} & set(ids))
        ]
    if ids:
        client.cancel(*ids)
    return 0
