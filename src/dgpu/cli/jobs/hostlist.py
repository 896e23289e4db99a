"""Lists of nodes as Slurm writes them: n1,n[3-5,07]. No I/O."""

from __future__ import annotations

import re

_MAX_NODES = 1_024
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class BadHostList(ValueError):  # noqa: N818  named for what it is
    """The text says what is expected."""


def expand(text: str) -> list[str]:
    """The names in order. Raises BadHostList."""
    names: list[str] = []
    place = 0
    while place <= len(text):
        match = _PART.match(text, place)
        part = match[0] if match else ""
        if not part or (match and match.end() < len(text) and text[match.end()] != ","):
            raise BadHostList("expected nodes like n1,n2 or n[1-4]")
        names += _expanded(part)
        if len(names) > _MAX_NODES:
            raise BadHostList(f"expected at most {_MAX_NODES:,} nodes")
        place += len(part) + 1
    return names


def _expanded(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [head]
    inner, _, tail = rest.partition("]")
    names: list[str] = []
    for each in inner.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise BadHostList("expected nodes like n1,n2 or n[1-4]")
        low, high = match[1], match[2] or match[1]
        if not int(low) <= int(high) < int(low) + _MAX_NODES:
            raise BadHostList(f"expected a range that ascends, of at most {_MAX_NODES:,} nodes")
        for number in range(int(low), int(high) + 1):
            names += [f"{head}{number:0{len(low)}d}{end}" for end in _expanded(tail)]
    return names
