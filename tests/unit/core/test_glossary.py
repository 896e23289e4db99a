"""docs/scheduling.md explains every derived field: a reader of the core finds each name there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dgpu.core.index.account import Accounts
from dgpu.core.index.beds import Beds
from dgpu.core.index.bookings import Bookings
from dgpu.core.index.queue import Queue
from dgpu.core.index.rooms import Rooms
from dgpu.core.parts import PART_NAMES
from dgpu.core.state import ClusterState

MAX_DERIVED = 30


def fields_of(kind: type) -> tuple[str, ...]:
    """Compiled classes have no slots; the compiler lists their fields under another name."""
    found: tuple[str, ...] = kind.__dict__.get("__mypyc_attrs__") or kind.__dict__["__slots__"]
    return found


DERIVED = set(fields_of(ClusterState)) - {*PART_NAMES, "key_ring"}  # the keys are a part, stored apart


def glossary() -> set[str]:
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text()
    fields = page.split("### Derived fields")[1].split("\n## ")[0]
    return set(re.findall(r"`([a-z_.]+)`", fields))


def test_the_state_has_few_derived_fields_and_the_glossary_explains_each() -> None:
    assert len(DERIVED) <= MAX_DERIVED
    assert glossary() >= DERIVED


@pytest.mark.parametrize("index", [Accounts, Beds, Bookings, Queue, Rooms])
def test_the_glossary_explains_the_fields_of_each_index(index: type) -> None:
    assert {name for name in fields_of(index) if not name.startswith("_")} <= glossary()
