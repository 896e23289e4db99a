"""Settings of the alert watch."""

from __future__ import annotations

import msgspec

from dgpu.service.alerts.outbox import SendingRules
from dgpu.service.alerts.targets import Target
from dgpu.service.alerts.values import MachineOptions


class AlertOptions(msgspec.Struct, frozen=True, kw_only=True):
    interval_ms: int = 5_000
    machine: MachineOptions = MachineOptions()
    sending: SendingRules = SendingRules()
    targets: tuple[Target, ...] = ()
