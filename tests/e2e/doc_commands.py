"""The commands that the documentation prints, for tests that run them word for word."""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
_FENCE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


class Command(NamedTuple):
    text: str
    place: str  # file and heading, for messages


def commands(page: str, *headings: str) -> list[Command]:
    """The commands of these sections, in order. A section that is gone is an error: a test would run nothing."""
    sections = _sections((ROOT / page).read_text())
    found: list[Command] = []
    for heading in headings:
        assert heading in sections, f"{page} has no section {heading!r}"
        lines = [line for block in _FENCE.findall(sections[heading]) for line in block.splitlines()]
        printed = [line[2:] for line in lines if line.startswith("$ ")]
        assert printed, f"{page}, {heading}: no command"
        found += [Command(text, f"{page}, {heading}") for text in printed]
    return found


def _sections(text: str) -> dict[str, str]:
    parts = _HEADING.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
