"""Grids: all combinations of values as one array."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dgpu.core.model.task import TaskDetail, TaskSpec
from dgpu.wire.grids import filled, named, size_of, values_of, variables_of
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import decode_task

GRID = {"lr": ("0.1", "0.01"), "seed": ("0", "1", "2")}


def spec(**fields: Any) -> TaskSpec:
    return decode_task(json.dumps({"command": "true", **fields}).encode())


def test_the_index_selects_the_values_and_the_last_list_varies_fastest() -> None:
    product = [tuple(values_of(GRID, index).values()) for index in range(size_of(GRID))]
    assert product == [(lr, seed) for lr in GRID["lr"] for seed in GRID["seed"]]
    assert list(values_of(GRID, 4)) == ["lr", "seed"]
    assert values_of(GRID, 6) == values_of({}, 0) == {}


def test_values_are_variables_and_parts_of_the_name_and_the_command() -> None:
    values = {"lr": "0.1", "data-set": "a b", "x.y": "$z"}
    assert variables_of(values) == {
        "lr": "0.1",
        "DGPU_GRID_LR": "0.1",
        "DGPU_GRID_DATA_SET": "a b",
        "DGPU_GRID_X_Y": "$z",
    }
    assert named("sweep", values) == "sweep lr=0.1 data-set=a b x.y=$z"
    assert named("", {"lr": "1"}) == "lr=1"
    assert filled("t --lr {lr} {data-set} {x.y} {other} {}", values) == "t --lr 0.1 'a b' '$z' {other} {}"
    assert filled(("t", "--d={data-set}", "{lr}"), values) == ("t", "--d=a b", "0.1")
    assert filled("t {lr}", {}) == "t {lr}"


def test_a_grid_is_one_array_whose_tasks_share_one_detail() -> None:
    made = spec(grid={"lr": [0.1, 1e-05], "seed": "0-4", "m": "a,b"})
    assert (made.array, made.array_limit) == (((0, 19, 1),), 0)
    detail = msgspec.json.decode(made.detail, type=TaskDetail)
    assert detail.grid == {"lr": ("0.1", "1e-05"), "seed": ("0", "1", "2", "3", "4"), "m": ("a", "b")}
    assert spec(grid={"s": "0-9"}, array="%3").array_limit == 3
    assert spec(grid={"s": "0-2"}, array="%3").array_limit == 0, "never reached"
    assert spec(grid={"s": "0-9:3,20"}, array="1,4").array == ((1, 1, 1), (4, 4, 1))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"grid": {}}, "grid"),
        ({"grid": []}, "grid"),
        ({"grid": {"lr": []}}, "grid.lr"),
        ({"grid": {"lr": "1,,2"}}, "grid.lr"),
        ({"grid": {"lr": [1, True]}}, "grid.lr[1]"),
        ({"grid": {"lr": [1, None]}}, "grid.lr[1]"),
        ({"grid": {"lr": 1}}, "grid.lr"),
        ({"grid": {"lr": "1,1"}}, "grid.lr"),
        ({"grid": {"lr": ["a\nb"]}}, "grid.lr[0]"),
        ({"grid": {"lr": "9-1"}}, "grid.lr"),
        ({"grid": {"lr": "0-999999999"}}, "grid.lr"),
        ({"grid": {"a": "0-99", "b": "0-99", "c": "0-1"}}, "grid.c"),
        ({"grid": {"1r": "1"}}, "grid.1r"),
        ({"grid": {"PATH": "1"}}, "grid.PATH"),
        ({"grid": {"DGPU_X": "1"}}, "grid.DGPU_X"),
        ({"grid": {"lr": "1", "LR": "2"}}, "grid"),
        ({"grid": {"lr": "1"}, "env": {"lr": "2"}}, "grid.lr"),
        ({"grid": {"lr": "1"}, "env": {"DGPU_GRID_LR": "2"}}, "grid.DGPU_GRID_LR"),
        ({"grid": {"s": "0-4"}, "array": "0-5"}, "array"),
        ({"array": "%3"}, "array"),
        ({"grid": {"s": "0-4"}, "array": "%0"}, "array"),
    ],
)
def test_a_wrong_grid_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        spec(**fields)
    assert refused.value.errors[0].path == path
