"""The use of tenants is counted alike, however long a state has lived."""

from __future__ import annotations

import datetime as dt

from msgspec.structs import replace

from building import START, cluster, do, finished, node, run_pass, task
from dgpu.core.commands import SetTenant
from dgpu.core.digest import digest
from dgpu.core.model.ids import TenantId
from dgpu.core.model.settings import Settings
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.usage import HOUR_MS, STEP_MS, month_of, month_starts_at
from dgpu.journal.snapshot import decode_snapshot, encode_snapshot


def test_use_weighs_the_same_after_a_restart_within_the_minute() -> None:
    """The steps of the factor begin at the landmark, not at the minutes of the clock."""
    settings = replace(Settings(), fair_share_half_life_ms=HOUR_MS, default_timeout_ms=0, max_timeout_ms=0)
    state = cluster(node("n1", gpus=2), settings=settings)
    do(state, SetTenant(tenant=Tenant(id=TenantId("a"))), at=START - START % STEP_MS + 90_000)
    for _ in range(2):
        do(state, task(tenant="a"))
    run_pass(state)
    step_at = state.meter.landmark_at + 10 * STEP_MS
    assert (step_at - 1) // STEP_MS == (step_at + 1) // STEP_MS, "the same minute"
    do(state, finished(state.tasks[1].lease_id), step_at - 1)
    restarted = decode_snapshot(encode_snapshot(state, index=1, epoch=1), "snapshot").state
    for each in (state, restarted):
        do(each, finished(each.tasks[2].lease_id), step_at + 1)
    assert restarted.usages == state.usages
    assert digest(restarted) == digest(state)


def test_months_are_those_of_the_calendar() -> None:
    first = dt.date(1970, 1, 1)
    for day in (*range(60_000), *range(60_000, 200_000, 13)):
        date = first + dt.timedelta(days=day)
        month = month_of(day * 86_400_000 + 86_399_999)
        assert month == date.year * 12 + date.month - 1
        assert month_starts_at(month) == (date.replace(day=1) - first).days * 86_400_000
