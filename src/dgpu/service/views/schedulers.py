"""The schedulers and the members of their engine, as people see them."""

from __future__ import annotations

from dgpu.journal.announced import MemberHealth, may_stop, quota_used
from dgpu.service.leadership.seen import SeenScheduler
from dgpu.service.leadership.standing import Standing
from dgpu.wire.scheduler_answers import MemberAnswer, SchedulerAnswer, SchedulerList


def scheduler_list(standing: Standing, *, version: str, epoch: int, index: int) -> SchedulerList:
    """Never waits for the engine. A lone scheduler lists itself."""
    if standing.peers is None:
        own = SchedulerAnswer(
            name="scheduler", role=standing.role, me=True, epoch=epoch, journal_index=index, version=version
        )
        return SchedulerList(schedulers=[own])
    members = standing.peers.members
    return SchedulerList(
        schedulers=[_scheduler(seen) for seen in standing.peers.schedulers()],
        members=[_member(member) for member in members],
        master=standing.master,
        engine=standing.engine_trouble(),
        quota_used=quota_used(members),
        members_may_stop=may_stop(members) if members else None,
    )


def _scheduler(seen: SeenScheduler) -> SchedulerAnswer:
    told = seen.announced
    return SchedulerAnswer(
        name=told.name,
        url=told.http,
        role=told.role,
        me=seen.is_me,
        healthy=not seen.trouble,
        trouble=seen.trouble,
        lag_ms=told.lag_ms,
        epoch=told.epoch,
        journal_index=told.index,
        version=told.version,
        last_seen_seconds=seen.unseen_ms / 1_000,
    )


def _member(member: MemberHealth) -> MemberAnswer:
    return MemberAnswer(
        address=member.address,
        state=member.state,
        healthy=member.healthy,
        version=member.version,
        db_bytes=member.db_bytes,
        quota_bytes=member.quota_bytes,
        trouble=member.trouble or ", ".join(member.alarms),
    )
