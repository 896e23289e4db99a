"""The TypeScript that is made from the structs of the wire: the same fields, the same names, the same values."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import subprocess
from types import ModuleType
from typing import Any, Literal

import msgspec
import pytest

from dgpu.wire.answers import TaskAnswer

WEB = pathlib.Path(__file__).parents[3] / "web"


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Leaf(msgspec.Struct, omit_defaults=True):
    size: int
    note: str = ""


class Pair(msgspec.Struct, array_like=True):
    first: int
    second: str | None


class Circle(msgspec.Struct, tag="circle", tag_field="shape"):
    radius: float


class Square(msgspec.Struct, tag="square", tag_field="shape"):
    side: float


class Parent(msgspec.Struct, kw_only=True):
    inherited: bool = False


class Everything(Parent, rename="camel", kw_only=True):
    number_of_things: int
    mean: float | int
    kind: Literal["a", "b", 3]
    colour: Colour
    maybe: str | None
    always_sent: str = "default"
    left_out: int | msgspec.UnsetType = msgspec.UNSET
    leaves: list[Leaf] = []
    curve: list[float | None] = []
    many: tuple[str, ...] = ()
    exactly: tuple[int, str] = (0, "")
    by_name: dict[str, Leaf] = {}
    by_colour: dict[Colour, int] = {}
    facts: dict[str, Any] = {}
    raw: msgspec.Raw = msgspec.Raw()
    at: dt.datetime | None = None
    pair: Pair | None = None
    drawn: Circle | Square | None = None
    children: list[Everything] = []
    renamed: str = msgspec.field(default="", name="other-name")


EXPECTED = """\
export interface Circle {
  shape: "circle";
  radius: number;
}

export type Colour = "red" | "blue";

export interface Everything {
  inherited: boolean;
  numberOfThings: number;
  mean: number;
  kind: 3 | "a" | "b";
  colour: Colour;
  maybe: string | null;
  alwaysSent: string;
  leftOut?: number;
  leaves: Leaf[];
  curve: (number | null)[];
  many: string[];
  exactly: [number, string];
  byName: Record<string, Leaf>;
  byColour: Partial<Record<Colour, number>>;
  facts: Record<string, unknown>;
  raw: unknown;
  at: string | null;
  pair: Pair | null;
  drawn: Circle | Square | null;
  children: Everything[];
  "other-name": string;
}

export interface Leaf {
  size: number;
  note?: string;
}

export type Pair = [number, string | null];

export interface Square {
  shape: "square";
  side: number;
}
"""


def test_every_kind_of_field_comes_out_as_it_is_on_the_wire(wire_types: ModuleType) -> None:
    assert wire_types.render([Everything]) == EXPECTED


def test_two_structs_with_one_name_are_refused(wire_types: ModuleType) -> None:
    other = msgspec.defstruct("Leaf", [("colour", Colour)])
    with pytest.raises(wire_types.NotSupported, match="both have a Leaf"):
        wire_types.render([Leaf, other])


def test_a_kind_of_type_that_is_not_known_is_named(wire_types: ModuleType) -> None:
    odd = msgspec.defstruct("Odd", [("when", dt.timedelta)])
    with pytest.raises(wire_types.NotSupported, match="TimeDelta"):
        wire_types.render([odd])


def test_all_answers_can_be_told(wire_types: ModuleType) -> None:
    text = wire_types.render(wire_types.answers())
    assert "export interface TaskAnswer {" in text
    assert "export interface AlertList {" in text
    assert 'status: "cancelled" | "failed" | "pending" | "running" | "success";' in text


@pytest.mark.parametrize(("field", "is_there"), [("allocated_nodes", True), ("allocated_notes", False)])
def test_a_page_that_reads_a_field_which_no_answer_has_fails_the_check(
    web: ModuleType, wire_types: ModuleType, tmp_path: pathlib.Path, field: str, is_there: bool
) -> None:
    try:
        node = web.need_packages(WEB)
    except web.NotBuilt as reason:
        pytest.skip(f"no Node.js or no packages: {reason}")
    (tmp_path / "wire.ts").write_text(wire_types.render([TaskAnswer]))
    page = f'import type {{ TaskAnswer }} from "./wire";\nexport const seen = (task: TaskAnswer) => task.{field};\n'
    (tmp_path / "page.ts").write_text(page)
    tsc = [*node, str(WEB / "node_modules" / "typescript" / "bin" / "tsc")]
    options = ["--noEmit", "--strict", "--ignoreConfig", "--skipLibCheck"]
    ran = subprocess.run(
        [*tsc, *options, str(tmp_path / "page.ts")], capture_output=True, text=True, check=False
    )
    assert (ran.returncode == 0) is is_there, ran.stdout
    assert (field in ran.stdout) is not is_there
