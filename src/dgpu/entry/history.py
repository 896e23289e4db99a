"""`dgpu scheduler --rebuild-history`."""

from __future__ import annotations

import sys

from dgpu.entry.config_types import SchedulerConfig
from dgpu.entry.scheduler import data_dir
from dgpu.journal.errors import JournalError
from dgpu.service.recovery.history_rebuild import rebuild_history


def rebuild(config: SchedulerConfig) -> int:
    try:
        rebuild_history(data_dir(config), lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    except (JournalError, OSError) as error:
        sys.stderr.write(f"dgpu: {error}\n")
        return 1
    return 0
