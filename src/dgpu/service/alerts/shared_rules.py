"""Conditions of several schedulers and of the engine of their journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dgpu.journal.announced import MemberHealth, may_stop
from dgpu.service.leadership.seen import MasterChange, SeenScheduler

Found = tuple[str, str, dict[str, Any]]  # subject, summary, facts
_GIB = 1 << 30


class SharedReadings(NamedTuple):
    """Empty for a lone scheduler."""

    standbys: tuple[SeenScheduler, ...] = ()  # all schedulers except this one
    change: MasterChange | None = None
    engine_trouble: str = ""
    members: tuple[MemberHealth, ...] = ()


def lagging(shared: SharedReadings, limit_ms: int) -> Iterator[Found]:
    for seen in shared.standbys:
        told = seen.announced
        facts = {
            "scheduler": told.name,
            "lag_seconds": None if told.lag_ms is None else told.lag_ms / 1_000,
            "last_seen_seconds": seen.unseen_ms // 1_000,
            "limit_seconds": limit_ms / 1_000,
        }
        if told.role == "stopped":
            why, state = "was stopped", "stopped"
        elif seen.unseen_ms > limit_ms:
            why, state = f"has not been seen for {seen.unseen_ms // 1_000} s", "unseen"
        elif told.lag_ms is None:
            why, state = "has not read the journal yet", "unread"
        elif told.lag_ms > limit_ms:
            why, state = f"is {told.lag_ms // 1_000} s behind", "behind"
        else:
            continue
        text = f"Scheduler {told.name} {why}: it could not take over now. Start it, or look at its log."
        yield told.name, text, {**facts, "state": state}


def changed(shared: SharedReadings, window_ms: int) -> Iterator[Found]:
    change = shared.change
    if change is not None and change.ago_ms < window_ms:
        facts = {"before": change.before, "after": change.after, "epoch": change.epoch}
        text = f"Scheduler {change.after} leads now (epoch {change.epoch}); before, {change.before} did."
        yield "cluster", text, facts


def without_majority(shared: SharedReadings) -> Iterator[Found]:
    if shared.engine_trouble:
        silent = [member.address for member in shared.members if not member.answers]
        which = f" Members that do not answer: {', '.join(silent)}." if silent else ""
        text = f"Nothing can be stored: {shared.engine_trouble}.{which} Start them; running tasks continue."
        yield "engine", text, {"trouble": shared.engine_trouble, "silent": silent}


def lost_members(shared: SharedReadings) -> Iterator[Found]:
    for member in shared.members:
        if not member.answers:
            left = may_stop(shared.members)
            more = "no other may stop" if not left else f"{left} more may stop"
            text = f"Member {member.address} of the engine does not answer; {more}. Start it, or replace it."
            yield member.address, text, {"member": member.address, "trouble": member.trouble, "more": left}


def filling(shared: SharedReadings, percent: float) -> Iterator[Found]:
    for member in shared.members:
        used, quota = member.db_bytes, member.quota_bytes
        if quota and used >= percent * quota:
            facts = {
                "member": member.address,
                "percent": round(used / quota, 3),
                "used_gib": round(used / _GIB, 3),
                "quota_gib": round(quota / _GIB, 3),
            }
            text = (
                f"Member {member.address} of the engine uses {used / quota:.0%} of its {quota / _GIB:.1f} GiB. "
                "When it is full, no task can be stored and no scheduler can take over. See docs/high-availability.md."
            )
            yield member.address, text, facts
