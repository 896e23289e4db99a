"""Alerts as records of the journal: few writes, and nothing is lost between two of them."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.service.alerts import records
from dgpu.service.alerts.outbox import Delivery
from dgpu.service.alerts.records import AlertRecords, Kept, load
from dgpu.service.alerts.values import Alert, AlertState, KeptAlerts, Message, Silence

ALERT = Alert(
    number=1,
    rule="agent_offline",
    subject="n1",
    severity="critical",
    state=AlertState.FIRING,
    summary="silent for 20 s",
    pending_since=1,
    firing_since=2,
)
SILENCE = Silence(number=3, rule="*", created_at=1, until=9, comment="night")
MESSAGE = Message(state="firing", rule="agent_offline", severity="critical", at=5, count=1, alerts=(ALERT,))
UNSENT = Delivery(id="m1", target="ops", message=MESSAGE, attempts=2)
KEPT = Kept(
    alerts=KeptAlerts(
        next_alert=2,
        next_silence=4,
        firing=(ALERT,),
        resolved=(replace(ALERT, number=0, state=AlertState.RESOLVED, resolved_at=4),),
        silences=(SILENCE,),
        ended=(replace(SILENCE, number=2),),
    ),
    unsent=(UNSENT,),
)


def stored(kept: Kept) -> dict[str, bytes]:
    return {name: content for step in AlertRecords({}).changes(kept) for name, content in step.put.items()}


def test_everything_is_the_same_after_a_restart() -> None:
    assert load(stored(KEPT)) == KEPT


def test_only_changed_records_are_written() -> None:
    own = AlertRecords(stored(KEPT))
    assert own.changes(KEPT) == []
    checked = replace(KEPT, alerts=replace(KEPT.alerts, firing=(replace(ALERT, summary="silent for 25 s"),)))
    assert own.changes(checked) == []
    known = replace(KEPT, alerts=replace(KEPT.alerts, firing=(replace(ALERT, acknowledged_at=7),)))
    (step,) = own.changes(known)
    assert (set(step.put), step.removed) == ({"firing/1"}, ())
    own.on_stored(step, known)
    assert own.changes(known) == []
    (step,) = own.changes(replace(known, unsent=()))
    assert step == ({}, ("unsent/ops/m1",))


def test_a_message_is_stored_before_its_alert_counts_as_told(monkeypatch) -> None:
    """A crash between two writes may repeat a message, and must not lose it."""
    monkeypatch.setattr(records, "MAX_PUT", 1)
    told = replace(KEPT, alerts=replace(KEPT.alerts, firing=(replace(ALERT, told=True),)))
    names = [name for step in AlertRecords({}).changes(told) for name in step.put]
    assert names.index("unsent/ops/m1") < names.index("firing/1")
