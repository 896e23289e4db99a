"""What is wrong in a configuration: where, and what was expected."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    path: str
    text: str
