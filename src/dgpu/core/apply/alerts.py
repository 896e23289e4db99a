"""Records of alerts."""

from __future__ import annotations

from dgpu.core.events import AlertRecordsKept
from dgpu.core.state import ClusterState


def apply_alert_records(state: ClusterState, event: AlertRecordsKept) -> None:
    for name in event.removed:
        state.alert_records.pop(name, None)
    state.alert_records.update(event.put)
