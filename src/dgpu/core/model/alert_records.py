"""Records of alerts: silences, acknowledgements, unsent messages. No decision of the core reads them."""

from __future__ import annotations

from typing import Final

MAX_RECORDS: Final = 20_000
MAX_RECORD_BYTES: Final = 256 << 10
