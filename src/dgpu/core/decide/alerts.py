"""Records of alerts."""

from __future__ import annotations

from dgpu.core.commands import KeepAlertRecords
from dgpu.core.decision import Decision
from dgpu.core.events import AlertRecordsKept
from dgpu.core.model.alert_records import MAX_RECORD_BYTES, MAX_RECORDS
from dgpu.core.rejections import TooManyAlertRecords
from dgpu.core.state import ClusterState


def decide_keep_alerts(state: ClusterState, command: KeepAlertRecords) -> Decision:
    known = state.alert_records
    removed = tuple([name for name in command.removed if name in known and name not in command.put])
    added = sum(name not in known for name in command.put)
    too_large = any(len(content) > MAX_RECORD_BYTES for content in command.put.values())
    if too_large or (added and len(known) + added - len(removed) > MAX_RECORDS):
        return TooManyAlertRecords(limit=MAX_RECORDS)
    if not command.put and not removed:
        return ()
    return (AlertRecordsKept(command.at, command.put, removed),)
