"""What an operator may set and decisions depend on. Journaled, so that a replay decides under the same rules."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    default_timeout_ms: int = 3_600_000  # batch only; 0: none
    max_timeout_ms: int = 86_400_000  # 0: none
    retry_delay_ms: int = 1_000  # doubles per retry
    max_retry_delay_ms: int = 60_000
    keep_finished: int = 10_000  # finished tasks held in memory; older ones are in the history
    keep_finished_ms: int = 3_600_000
    idempotency_ms: int = 86_400_000
    most_waiting: int = 1_000_000  # a bound on memory; beyond it submits are refused
    most_leases: int = (
        512  # on one node: tasks that ask for neither GPUs nor cpus would else all start at once
    )
