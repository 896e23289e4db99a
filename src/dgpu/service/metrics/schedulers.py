"""Several schedulers and their engine as metric families. A lone scheduler has none of them."""

from __future__ import annotations

from dgpu.service.leadership.standing import Standing
from dgpu.service.metrics.text import Text


def tell_schedulers(text: Text, standing: Standing) -> None:
    if standing.peers is None:
        return
    lag_ms = standing.lag_ms()
    about = "Time since this scheduler last knew that it had everything; absent: it has never known."
    text.one("scheduler_lag_seconds", "gauge", about, None if lag_ms is None else lag_ms / 1_000)
    seen = standing.peers.schedulers()
    lags = {each.announced.name: (each.announced.lag_ms or 0) / 1_000 for each in seen}
    text.by("scheduler", "scheduler_peer_lag_seconds", "gauge", "Lag that each scheduler announced.", lags)
    unseen = {each.announced.name: each.unseen_ms / 1_000 for each in seen}
    about = "Time since each scheduler was last seen."
    text.by("scheduler", "scheduler_peer_unseen_seconds", "gauge", about, unseen)
    is_master = {each.announced.name: int(each.announced.role == "master") for each in seen}
    about = "1 for the scheduler that leads, as each announced it."
    text.by("scheduler", "scheduler_peer_is_master", "gauge", about, is_master)
    members = standing.peers.members
    about = "1 for each member of the engine that works."
    healthy = {member.address: int(member.healthy) for member in members}
    text.by("member", "engine_member_healthy", "gauge", about, healthy)
    leads = {member.address: int(member.is_leader) for member in members}
    text.by("member", "engine_member_is_leader", "gauge", "1 for the member that leads the engine.", leads)
    sizes = {member.address: member.db_bytes for member in members if member.answers}
    text.by("member", "engine_member_bytes", "gauge", "Data of each member of the engine.", sizes)
