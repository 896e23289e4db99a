"""structlog, imported without rich: its console renderer takes that in for colours, where it is installed.

Ours are lines for machines and for people who search. rich is a tenth of a service's start. Import this before anything
that imports structlog.
"""

from __future__ import annotations

import sys

_seen = "rich" in sys.modules
if not _seen:
    sys.modules["rich"] = None  # type: ignore[assignment]  # whoever imports it now is told that it is not there
try:
    import structlog
finally:
    if not _seen:
        del sys.modules["rich"]

__all__ = ["structlog"]
