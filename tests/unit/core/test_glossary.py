"""docs/scheduling.md explains every derived field: a reader of the core finds each name there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgpu.core.index.account import Accounts
from dgpu.core.index.beds import Beds
from dgpu.core.index.bookings import Bookings
from dgpu.core.index.crews import Crews
from dgpu.core.index.ends import Ends
from dgpu.core.index.queue import Queue
from dgpu.core.index.rooms import Rooms
from dgpu.core.model.dependencies import Dependents
from dgpu.core.parts import PART_NAMES
from dgpu.core.state import ClusterState

MAX_DERIVED = 30
INDEXES = (Accounts, Beds, Bookings, Crews, Dependents, Ends, Queue, Rooms)


def fields_of(kind: type) -> tuple[str, ...]:
    """Compiled classes have no slots; the compiler lists their fields under another name."""
    found: tuple[str, ...] = kind.__dict__.get("__mypyc_attrs__") or kind.__dict__["__slots__"]
    return found


DERIVED = set(fields_of(ClusterState)) - {*PART_NAMES, "key_ring"}  # the keys are a part, stored apart


def glossary() -> set[str]:
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text()
    fields = page.split("### Derived fields")[1].split("\n## ")[0]
    return set(re.findall(r"`([a-z_.]+)`", fields))


def public(index: type) -> set[str]:
    return {name for name in fields_of(index) if not name.startswith("_")}


def test_there_are_few_derived_fields_and_the_glossary_explains_those_of_the_state() -> None:
    assert len(DERIVED) + sum(len(public(index)) for index in INDEXES) <= MAX_DERIVED
    assert glossary() >= DERIVED


@pytest.mark.parametrize("index", INDEXES)
def test_the_glossary_explains_the_fields_of_each_index(index: type) -> None:
    assert public(index) <= glossary()
