"""Completion of values: ids of tasks, nodes, GPUs and tenants come from the scheduler, fixed words from the help text.

The metavar of a parameter says what it takes (`ID`, `NODE...`, `online|batch`), so a new verb needs nothing here. A
shell waits for the answer: without a scheduler, or with a slow one, there is nothing to offer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dgpu.cli.flags import flags_of
from dgpu.core.model.task import PRIORITY_LEVELS, TaskStatus

if TYPE_CHECKING:
    from typer._click.core import Command, Context

    from dgpu.client.sync import Client

_ANSWER_SECONDS = 2.0
_MAX_TASKS = 100
_WORDS = re.compile(r"\[?([a-z][a-z-]*(?:\|[a-z][a-z-]*)+)\]?")

Offer = tuple[str, str]  # a value, and a remark for shells that show one


def attach(command: Command) -> None:
    """Gives each parameter of the command, and of its inner commands, the values it takes."""
    for param in command.params:
        offers = _offers(param)
        if offers is not None:
            param._custom_shell_complete = _completer(offers)  # noqa: SLF001
    for inner in getattr(command, "commands", {}).values():
        attach(inner)


def _offers(param: Any) -> Callable[[Context], Iterator[Offer]] | None:
    metavar = param.metavar or ""
    if words := _WORDS.fullmatch(metavar):
        return lambda _: ((word, "") for word in words[1].split("|"))
    for option in param.opts:
        if option in _BY_OPTION:
            return _BY_OPTION[option]
    return _BY_METAVAR.get(re.sub(r"\.\.\.$|\[.*", "", metavar))


def _completer(offers: Callable[[Context], Iterator[Offer]]) -> Callable[[Context, Any, str], list[Any]]:
    def complete(ctx: Context, _param: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        try:
            found = list(offers(ctx))
        except Exception:  # noqa: BLE001  an error message would end up in the command line of the user
            return []
        return [
            CompletionItem(value, help=remark or None)
            for value, remark in found
            if value.startswith(incomplete)
        ]

    return complete


def _client(ctx: Context) -> Client:
    from dgpu.client.sync import Client

    flags = flags_of(ctx)  # type: ignore[arg-type]
    return Client(flags.server, token=flags.token, timeout_seconds=_ANSWER_SECONDS, retries=0)


def _tasks(ctx: Context) -> Iterator[Offer]:
    """Both forms of an id are valid; the shell offers those that begin as typed."""
    for task in _client(ctx).page(limit=_MAX_TASKS).tasks:
        remark = f"{task.status} {task.name}".rstrip()
        yield task.task_id.removeprefix("task-"), remark
        yield task.task_id, remark


def _nodes(ctx: Context) -> Iterator[Offer]:
    for node in _client(ctx).nodes().nodes:
        yield node.id, node.status


def _gpus(ctx: Context) -> Iterator[Offer]:
    for gpu in _client(ctx).gpus().gpus:
        yield f"{gpu.node}:{gpu.index}", f"{gpu.status} {gpu.model}"


def _nodes_and_gpus(ctx: Context) -> Iterator[Offer]:
    yield from _nodes(ctx)
    yield from _gpus(ctx)


def _tenants(ctx: Context) -> Iterator[Offer]:
    for tenant in _client(ctx).tenants():
        yield tenant.id, ""


def _models(ctx: Context) -> Iterator[Offer]:
    for model in sorted({gpu.model for gpu in _client(ctx).gpus().gpus}):
        yield model, ""


def _priorities() -> Iterator[Offer]:
    return ((word, str(number)) for word, number in PRIORITY_LEVELS.items())


_BY_OPTION: dict[str, Callable[[Context], Iterator[Offer]]] = {
    "--tenant": _tenants,
    "--gpu-type": _models,
    "--priority": lambda _: _priorities(),
}
_BY_METAVAR: dict[str, Callable[[Context], Iterator[Offer]]] = {
    "ID": _tasks,
    "NODE": _nodes,
    "GPU": _gpus,
    "NODE|GPU": _nodes_and_gpus,
    "TENANT": _tenants,
    "STATE": lambda _: ((status.value, "") for status in TaskStatus),
    "PRIORITY": lambda _: _priorities(),
}
