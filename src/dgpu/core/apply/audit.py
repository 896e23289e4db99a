"""The audit log. No decision reads it: only the journal and the history have it."""

from __future__ import annotations

from dgpu.core.events import Audited
from dgpu.core.state import ClusterState


def apply_audited(_state: ClusterState, _event: Audited) -> None:
    pass
