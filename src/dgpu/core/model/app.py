"""An app: code, environment and GPU demand of function calls. Calls of one app run on the same workers.

The id of an app is a hash of its content, so equal submits share workers. Tenants never share an app.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskSpec

DEFAULT_MAX_WORKERS: Final = 8
MAX_WORKERS: Final = 256
MAX_APPS: Final = 10_000


class App(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    id: str
    spec: TaskSpec  # of its workers
    max_workers: int = DEFAULT_MAX_WORKERS
    failures: int = 0  # workers in a row that ended before they were ready
    error: str = ""  # of the last of them
    eligible_at: int = 0  # no new worker before this time
    runs: int = 0  # calls that ended and count for `run_us`, up to a limit
    run_us: int = 0  # how long a call takes: an average that follows changes


def back_off_ms(settings: Settings, failures: int) -> int:
    """After this many failed workers in a row."""
    return min(settings.max_retry_delay_ms, settings.retry_delay_ms << min(failures - 1, 32))
