"""The inputs of the rules about several schedulers."""

from __future__ import annotations

from dgpu.service.alerts.shared_rules import SharedReadings
from dgpu.service.leadership.standing import Standing


def read_shared(standing: Standing) -> SharedReadings:
    if standing.peers is None:
        return SharedReadings()
    return SharedReadings(
        standbys=tuple(seen for seen in standing.peers.schedulers() if not seen.is_me),
        change=standing.peers.master_change(),
        engine_trouble=standing.engine_trouble(),
        members=standing.peers.members,
    )
