"""Imports structlog without rich, which its console renderer would import for colours.

Log lines need no colours, and rich takes a tenth of a service's start. Import this module before any other import of
structlog.
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
