"""Names of files that get a copy of a task's output, with patterns as Slurm has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dgpu.wire.fields import MAX_PATH_CHARS, Unacceptable

NODE_PATTERN = "%N"
LETTERS = "jaAxN%"  # number of the task, index and number of its array, name, node

_PATTERN = re.compile(r"%(.?)", re.DOTALL)


def file_pattern(value: Any) -> str:
    if type(value) is not str or not value or len(value) > MAX_PATH_CHARS or not value.isprintable():
        raise Unacceptable(f"the path of a file, of at most {MAX_PATH_CHARS} characters")
    if value.rpartition("/")[2] in {"", ".", ".."}:
        raise Unacceptable("the path of a file, not of a directory")
    if unknown := unknown_patterns(value):
        raise Unacceptable(
            f"a path without {unknown[0]}; known are %j %a %A %x %N, and %% for a percent sign"
        )
    return value


def unknown_patterns(path: str) -> list[str]:
    return [match[0] for match in _PATTERN.finditer(path) if not match[1] or match[1] not in LETTERS]


def filled_in(path: str, values: Mapping[str, str]) -> str:
    """`values`: by letter. A value cannot lead into another directory."""
    known = {**values, "%": "%"}
    return _PATTERN.sub(lambda match: known.get(match[1], match[0]).replace("/", "_"), path)
