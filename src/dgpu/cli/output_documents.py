"""The output of tasks as documents, for programs: one for each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dgpu.cli.array_output import started
from dgpu.cli.failures import ExitCode, translated
from dgpu.cli.flags import Flags
from dgpu.cli.output import print_rows

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer


def print_output(client: Client, task: TaskAnswer, chosen: Mapping[str, Any], flags: Flags) -> None:
    """`chosen`: further arguments of Client.stream_logs."""
    document = _document(task, _text(client, task, chosen), attempt=chosen.get("attempt"))
    print_rows(document, [document], [], "task_id", flags)


def print_array_outputs(client: Client, array: TaskAnswer, chosen: Mapping[str, Any], flags: Flags) -> None:
    """All tasks that have started, by id."""
    documents = []
    for task in started(client, array.task_id, "running,success,failed,cancelled"):
        try:
            documents.append(_document(task, _text(client, task, chosen)))
        except Exception as error:
            failure = translated(error)
            if failure is None or failure.exit_code != ExitCode.NOT_FOUND:
                raise
            documents.append(_document(task, None, error=failure.message))
    print_rows(documents, documents, [], "task_id", flags)


def _text(client: Client, task: TaskAnswer, chosen: Mapping[str, Any]) -> str:
    return b"".join(client.stream_logs(task.task_id, **chosen)).decode("utf-8", "replace")


def _document(
    task: TaskAnswer, output: str | None, *, attempt: int | None = None, error: str = ""
) -> dict[str, Any]:
    """`output` is null if it is lost; `error` says why."""
    return {
        "task_id": task.task_id,
        "attempt": attempt or task.attempt,
        "status": task.status,
        "output": output,
        "error": error,
    }
