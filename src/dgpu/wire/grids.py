"""Grids: an array of the product of several lists of values. The detail that all tasks of an array share has the lists;
the index of a task selects its values, the last list varies fastest.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dgpu.core.model.array import MAX_TASKS, ArrayPlan, indexes
from dgpu.wire.fields import Unacceptable

Grid = Mapping[str, Sequence[str]]

MAX_KEYS = 16
MAX_VALUE_CHARS = 256
MAX_CHARS = 65_536  # of all values
PREFIX = "DGPU_GRID_"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_TAKEN = ("DGPU_", "CUDA_", "LD_", "PATH")  # beginnings of variables with a meaning of their own
_EXPECTED = 'values like {"lr": [0.1, 0.01], "seed": "0-4"}'


# What a task gets


def values_of(grid: Grid, index: int) -> dict[str, str]:
    """The values of the task with this index; none beyond the end of the grid."""
    if not grid or not 0 <= index < size_of(grid):
        return {}
    found: dict[str, str] = {}
    for key, values in reversed(list(grid.items())):
        index, place = divmod(index, len(values))
        found[key] = values[place]
    return {key: found[key] for key in grid}


def variables_of(values: Mapping[str, str]) -> dict[str, str]:
    """DGPU_GRID_LR and, if the key is the name of a variable, lr."""
    own = {key: value for key, value in values.items() if _VARIABLE.fullmatch(key)}
    return own | {_variable(key): value for key, value in values.items()}


def named(name: str, values: Mapping[str, str]) -> str:
    """`sweep lr=0.1 seed=3`."""
    return " ".join([*([name] if name else []), *(f"{key}={value}" for key, value in values.items())])


def filled(command: str | Sequence[str], values: Mapping[str, str]) -> str | tuple[str, ...]:
    """`{lr}` stands for the value. In a shell command, the value is quoted if needed."""
    if not values:
        return command if isinstance(command, str) else tuple(command)
    holes = re.compile("|".join(re.escape(f"{{{key}}}") for key in values))
    if isinstance(command, str):
        return holes.sub(lambda hole: shlex.quote(values[hole[0][1:-1]]), command)
    return tuple(holes.sub(lambda hole: values[hole[0][1:-1]], word) for word in command)


def size_of(grid: Grid) -> int:
    return math.prod(len(values) for values in grid.values())


def _variable(key: str) -> str:
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", key.upper())


# The field of a submit


def grid(value: Any) -> dict[str, tuple[str, ...]]:
    """`{"lr": [0.1, 0.01], "seed": "0-4"}`. A text has values with commas between them, and ranges."""
    if type(value) is not dict or not 1 <= len(value) <= MAX_KEYS:
        raise Unacceptable(f"1 to {MAX_KEYS} names with their {_EXPECTED}", value=value)
    found: dict[str, tuple[str, ...]] = {}
    for key, values in value.items():
        at = f".{key[:64]}"
        if not _KEY.fullmatch(key) or key.upper().startswith(_TAKEN):
            taken = ", ".join(_TAKEN)
            expected = f"a name of letters, digits, '_', '.' or '-' that does not begin with {taken}"
            raise Unacceptable(expected, at=at, value=key)
        found[key] = _values(values, at)
        if math.prod(map(len, found.values())) > MAX_TASKS:
            raise Unacceptable(f"at most {MAX_TASKS:,} combinations of all values", at=at, value=values)
    if len({_variable(key) for key in found}) < len(found):
        raise Unacceptable("names that differ in more than case and signs", value=list(found))
    if sum(len(text) for values in found.values() for text in values) > MAX_CHARS:
        raise Unacceptable(f"at most {MAX_CHARS:,} characters in all values", value=f"{len(found)} names")
    return found


def _values(value: Any, at: str) -> tuple[str, ...]:
    items = value.split(",") if type(value) is str else value
    if type(items) is not list or not items:
        raise Unacceptable(_EXPECTED, at=at, value=value)
    found: list[str] = []
    for number, item in enumerate(items):
        if type(item) not in {str, int, float} or not _is_value(text := str(item).strip()):
            expected = f"a number, or a text of 1 to {MAX_VALUE_CHARS} characters"
            raise Unacceptable(expected, at=at if type(value) is str else f"{at}[{number}]", value=item)
        found += _range(text, at) if type(value) is str else [text]
    if len(found) > MAX_TASKS or len(set(found)) < len(found):
        raise Unacceptable(f"at most {MAX_TASKS:,} values, each once", at=at, value=value)
    return tuple(found)


def _is_value(text: str) -> bool:
    return 0 < len(text) <= MAX_VALUE_CHARS and text.isprintable()


def _range(text: str, at: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if last < first or step < 1 or (last - first) // step >= MAX_TASKS:
        raise Unacceptable(f"an ascending range of at most {MAX_TASKS:,} values", at=at, value=text)
    return [str(number) for number in range(first, last + 1, step)]


def misfit(values: dict[str, Any], detail: Mapping[str, Any]) -> tuple[str, str] | None:
    """Rules between fields. Sets the array of a grid: all of it, or the indexes that `array` gives."""
    plan: ArrayPlan = values.get("array") or ArrayPlan((), 0)
    if "grid" not in detail:
        return (
            ("array", "Expected indexes before %, as in 0-9%3.") if plan.limit and not plan.ranges else None
        )
    number = size_of(detail["grid"])
    names = {*detail.get("env", {}), *(use.get("env", "") for use in detail.get("secrets", {}).values())}
    for name in variables_of(detail["grid"]):
        if name in names:
            return f"grid.{name}", "Expected a name that is not in env or secrets, too."
    if plan.ranges and max(indexes(plan.ranges)) >= number:
        return "array", f"Expected indexes of the grid, 0 to {number - 1}."
    limit = plan.limit if plan.limit < number else 0
    values["array"] = ArrayPlan(plan.ranges or ((0, number - 1, 1),), limit)
    return None
