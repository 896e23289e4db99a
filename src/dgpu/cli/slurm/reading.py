"""Arguments of Slurm's commands, and connections to the scheduler."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dgpu.cli.connection import connect
from dgpu.cli.failures import CliFailure
from dgpu.cli.flags import Flags
from dgpu.cli.jobs.directives import Fault, Options, Takes

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

FLAG = Takes(False)
VALUE = Takes(True)
MAYBE = Takes(True, optional=True)


def read(
    arguments: Sequence[str], takes: Mapping[str, Takes], short: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Options by name (a flag has an empty text), and the other words, which may stand between options."""
    options = Options(takes, short)
    found: dict[str, str] = {}
    words: list[str] = []
    left = list(arguments)
    while left:
        given, left, faults = options.read_arguments(left)
        refuse(faults)
        found |= {option.name: option.value or "" for option in given}
        if left:
            words.append(left.pop(0))
    return found, words


def refuse(faults: Iterable[Fault]) -> None:
    if listed := sorted({fault.message for fault in faults}):
        raise CliFailure("\n".join(listed))


def scheduler() -> Client:
    return connect(Flags())


def tasks_of(client: Client, statuses: Iterable[str]) -> list[TaskAnswer]:
    """Each once: a task may start between two calls."""
    found = {task.task_id: task for status in statuses for task in client.list(status=status)}
    return list(found.values())


def me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def words_of(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
