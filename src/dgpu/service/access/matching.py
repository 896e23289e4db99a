"""Finds the call of a request by its method and path, before and without the frame."""

from __future__ import annotations

from typing import Final, NamedTuple

from dgpu.service.access.operations import OPEN_OPERATIONS, OPERATIONS
from dgpu.service.access.table import Action


class Matched(NamedTuple):
    call: str  # as in the table of operations
    action: Action | None  # None: the call needs no identity
    name: str = ""  # the last name in its path, other than the path of a file
    name_kind: str = ""  # task_id, tenant_id ...
    tenant_id: str = ""  # if the path names a tenant


_ALL: Final = {**OPERATIONS, **dict.fromkeys(OPEN_OPERATIONS)}
_FIXED: Final = {call: Matched(call, action) for call, action in _ALL.items() if "{" not in call}
_NAMED: Final = [(call, call.split("/"), action) for call, action in _ALL.items() if "{" in call]


def match(method: str, path: str) -> Matched | None:
    """None: there is no such call."""
    wanted = f"{'GET' if method == 'HEAD' else method} {path.rstrip('/')}"
    found = _FIXED.get(wanted)
    if found is not None:
        return found
    parts = wanted.split("/")
    for call, known, action in _NAMED:
        takes_rest = known[-1] == "{file_path}"
        if len(parts) != len(known) and not (takes_rest and len(parts) > len(known)):
            continue
        if all(ours[:1] == "{" or ours == theirs for ours, theirs in zip(known, parts, strict=False)):
            named = {part.strip("{}"): parts[place] for place, part in enumerate(known) if part[:1] == "{"}
            kind = [each for each in named if each != "file_path"][-1]
            return Matched(call, action, named[kind], kind, named.get("tenant_id", ""))
    return None
