"""Old records become new ones while they are read; files are never rewritten.

A step takes a group of the schema it is filed under, as plain lists and maps, and returns it in the next schema. Adding
a field at the end of an event, with a default, needs no step and no new schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[list[Any]], list[Any]]

STEPS: Mapping[int, Step] = {}  # schema 1 is the first


def upcast(group: list[Any], schema: int, target: int, steps: Mapping[int, Step] = STEPS) -> list[Any]:
    for step in range(schema, target):
        if step not in steps:
            raise ValueError(f"no way from schema {step} to {step + 1}")
        group = steps[step](group)
    return group
