"""Names from clients in entries of the audit log."""

from __future__ import annotations

import re
from typing import Final

MAX_NAME: Final = 64
_TOKEN: Final = re.compile(r"dgpuj?_")


def clean(name: str) -> str:
    """Printable, short, and without a token that was typed in the wrong place."""
    found = _TOKEN.search(name)
    if found is not None:
        return f"{found.group()}…"
    return "".join(sign if sign.isprintable() else "?" for sign in name[:MAX_NAME])
