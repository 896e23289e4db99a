"""Converts old records when they are read; files are never rewritten.

A step takes a group of its schema, as plain lists and maps, and returns it in the next schema. A
schema that only adds fields at the end of events, with defaults, has no step: its records are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[list[Any]], list[Any]]

STEPS: Mapping[int, Step | None] = {
    1: None,  # 2 adds the identity of the cluster and the epoch to EpochBegan
}


def only_adds_fields(schema: int, target: int, steps: Mapping[int, Step | None] = STEPS) -> bool:
    return all(step in steps and steps[step] is None for step in range(schema, target))


def upcast(group: list[Any], schema: int, target: int, steps: Mapping[int, Step | None] = STEPS) -> list[Any]:
    for number in range(schema, target):
        if number not in steps:
            raise ValueError(f"no conversion from schema {number} to {number + 1}")
        step = steps[number]
        if step is not None:
            group = step(group)
    return group
