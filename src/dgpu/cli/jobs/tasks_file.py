"""`dgpu submit -f jobs.yaml`: one or several tasks, with defaults, and dependencies by name."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from dgpu.cli.arguments import WHENS, parse_duration, parse_memory_mb, parse_plain_memory_mb
from dgpu.cli.failures import CliFailure, ExitCode
from dgpu.cli.jobs.directives import Fault, JobFileError
from dgpu.cli.jobs.marked_yaml import Marked, read_marked
from dgpu.cli.jobs.script import refusal
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import task_of
from dgpu.wire.task_names import parse_named

MAX_BYTES = 8 << 20
_MERGED = ("env", "labels")
_UNITS: dict[str, Callable[[str], float]] = {
    "timeout_seconds": parse_duration,
    "gpu_memory_mb": parse_plain_memory_mb,
    "ram_mb": parse_plain_memory_mb,
    "shm_mb": parse_memory_mb,
}

Complete = Callable[[dict[str, Any]], dict[str, Any]]


def read_tasks(path: str, complete: Complete) -> list[dict[str, Any]]:
    """The tasks in an order in which each comes after its dependencies, ready to be sent. `complete` adds the flags of
    the command line and the surroundings of the shell. Every error is told with its line, and nothing is sent.
    """
    try:
        content = Path(path).read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CliFailure(f"{path} cannot be read: {error}", ExitCode.USAGE) from None
    if len(content) > MAX_BYTES:
        raise CliFailure(f"{path} has {len(content):,} bytes, at most {MAX_BYTES:,} are read", ExitCode.USAGE)
    try:
        return _Reading(read_marked(text), complete).tasks()
    except JobFileError as error:
        raise refusal(path, error) from None


class _Entry(NamedTuple):
    path: str  # in the file: tasks[3], or empty for a file of one task
    task: dict[str, Any]


class _Reading:
    def __init__(self, file: Marked, complete: Complete) -> None:
        self._file = file
        self._complete = complete
        self._faults: list[Fault] = []

    def tasks(self) -> list[dict[str, Any]]:
        entries = self._entries()
        self._stop()
        names = self._names(entries)
        wanted = [self._after(entry, names) for entry in entries]
        self._stop()
        order = self._sorted(entries, wanted)
        self._stop()
        place = {old: number for number, old in enumerate(order)}
        ready = [self._ready(entries[old], wanted[old], place) for old in order]
        for number, (old, task) in enumerate(zip(order, ready, strict=True)):
            self._check(entries[old].path, number, task)
        self._stop()
        return ready

    def _stop(self) -> None:
        if self._faults:
            raise JobFileError(self._faults)

    def _fault(self, path: str, message: str) -> None:
        self._faults.append(self._file.fault(path, message))

    def _entries(self) -> list[_Entry]:
        document = self._file.value
        if not isinstance(document, dict):
            self._fault("", "expected `tasks: [...]`, or the fields of one task")
            return []
        if "tasks" not in document and "defaults" not in document:
            return [_Entry("", self._with_units("", document))]
        for name in document.keys() - {"tasks", "defaults"}:
            self._fault(name, f"{name} is not known here; expected tasks and defaults")
        listed, defaults = document.get("tasks"), document.get("defaults") or {}
        if not isinstance(defaults, dict):
            self._fault("defaults", "expected fields of a task")
            defaults = {}
        defaults = self._with_units("defaults", defaults)
        if not isinstance(listed, list) or not listed:
            self._fault("tasks", "expected a list of at least one task")
            return []
        return [self._entry(f"tasks[{number}]", task, defaults) for number, task in enumerate(listed)]

    def _entry(self, path: str, task: Any, defaults: Mapping[str, Any]) -> _Entry:
        if not isinstance(task, dict):
            self._fault(path, f"expected the fields of a task, got {task!r}")
            return _Entry(path, {})
        own = self._with_units(path, task)
        for name in _MERGED:
            if isinstance(own.get(name), dict) and isinstance(defaults.get(name), dict):
                own[name] = {**defaults[name], **own[name]}
        return _Entry(
            path, {**copy.deepcopy(dict(defaults)), **own}
        )  # shared values would be aliases in --print

    def _with_units(self, path: str, task: Mapping[str, Any]) -> dict[str, Any]:
        """`timeout_seconds: 2h` and `ram_mb: 16G`, as on the command line."""
        found = dict(task)
        for name, read in _UNITS.items():
            if isinstance(task.get(name), str):
                try:
                    found[name] = read(task[name])
                except typer.BadParameter as error:
                    self._fault(_inner(path, name), f"{name}: {error.message}")
        return found

    def _names(self, entries: list[_Entry]) -> dict[str, list[int]]:
        names: dict[str, list[int]] = {}
        for number, entry in enumerate(entries):
            if isinstance(name := entry.task.get("name"), str):
                names.setdefault(name, []).append(number)
        return names

    def _after(self, entry: _Entry, names: Mapping[str, list[int]]) -> list[tuple[int | str, str]]:
        """Numbers of tasks of this file, and ids of others, each with its condition."""
        after = entry.task.get("after")
        items = after if isinstance(after, list) else [] if after is None else [after]
        found: list[tuple[int | str, str]] = []
        for place, item in enumerate(items):
            path = _inner(entry.path, f"after[{place}]" if isinstance(after, list) else "after")
            name, when = _named(item, names)
            if when not in WHENS:
                self._fault(
                    path, f"expected a name or id, and after a colon {', '.join(WHENS)}; got {item!r}"
                )
            elif name in names:
                if len(names[name]) > 1:
                    self._fault(path, f"{len(names[name])} tasks of this file have the name {name}")
                found.append((names[name][0], when))
            elif parse_named(name) is not None:
                found.append((name, when))
            else:
                self._fault(
                    path, f"no task of this file has the name {name!r}; other tasks go by id, like task-42"
                )
        return found

    def _sorted(self, entries: list[_Entry], wanted: list[list[tuple[int | str, str]]]) -> list[int]:
        """In the order of the file, but each task after its dependencies."""
        needs = [{on for on, _ in each if isinstance(on, int)} for each in wanted]
        dependents: list[list[int]] = [[] for _ in entries]
        for old, on in enumerate(needs):
            for earlier in on:
                dependents[earlier].append(old)
        ready = [old for old, on in enumerate(needs) if not on]  # in order, so a heap
        order: list[int] = []
        while ready:
            done = heapq.heappop(ready)
            order.append(done)
            for old in dependents[done]:
                needs[old].discard(done)
                if not needs[old]:
                    heapq.heappush(ready, old)
        for old, on in enumerate(needs):
            if on:
                self._fault(_inner(entries[old].path, "after"), "these tasks wait for each other in a circle")
                break
        return order

    def _ready(
        self, entry: _Entry, wanted: list[tuple[int | str, str]], place: Mapping[int, int]
    ) -> dict[str, Any]:
        task = {name: value for name, value in entry.task.items() if name != "after"}
        if wanted:
            task["after"] = [
                {"entry": place[on], "when": when} if isinstance(on, int) else {"task_id": on, "when": when}
                for on, when in wanted
            ]
        is_sound = all(isinstance(task.get(name) or {}, dict) for name in _MERGED)
        return self._complete(task) if is_sound else task

    def _check(self, path: str, number: int, task: dict[str, Any]) -> None:
        """As the scheduler will check it. A directory to upload becomes a digest when it is sent."""
        sent = {name: value for name, value in task.items() if name != "upload" or not isinstance(value, str)}
        try:
            task_of(sent, number)
        except BadRequest as bad:
            for error in bad.errors:
                field = error.path.removeprefix(f"tasks[{number}]").removeprefix(".")
                self._fault(_inner(path, field), f"{field}: {error.detail}" if field else error.detail)


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _named(item: Any, names: Mapping[str, list[int]]) -> tuple[str, str]:
    """`prepare`, `prepare:any`, `task-42`, 42, or `{task_id: ..., when: ...}`."""
    if isinstance(item, dict) and item.keys() <= {"task_id", "when"} and "task_id" in item:
        return str(item["task_id"]), str(item.get("when", "ok"))
    if not isinstance(item, str | int) or isinstance(item, bool):
        return "", ""
    name = str(item)
    if name in names or ":" not in name:
        return name, "ok"
    name, _, when = name.rpartition(":")
    return name, when
