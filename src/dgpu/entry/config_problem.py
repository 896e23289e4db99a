"""An error in a configuration: its place and the expected value."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    path: str
    text: str
