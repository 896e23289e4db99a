"""Limits of tenants and pools that hold together."""

from __future__ import annotations

import pytest

from building import cluster, do, node, run_pass, task
from dgpu.core.commands import SetQuota, SetTenant
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.foresight.trial import try_quota
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota
from dgpu.core.model.settings import Settings
from dgpu.core.model.tenant import Tenant

EVERY = {"max_gpus": 9, "max_running": 9, "max_gpu_memory_mb": 99_328, "gpu_hours_milli": 1_000}


@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        ("max_gpus", 1, "tenant_gpus"),
        ("max_running", 1, "tenant_running"),
        ("max_gpu_memory_mb", 1_024, "tenant_memory"),
    ],
)
def test_a_tenant_with_every_limit_is_held_to_each_of_them(limit: str, value: int, told: str) -> None:
    """A test of one limit alone leaves open whether they hold together."""
    tenant = Tenant(id=TenantId("a"), **{**EVERY, limit: value})
    state = cluster(
        node("n1", gpus=4),
        settings=Settings(quota=Quota(online_ppm=0), tenants=(tenant,), memory_margin_mb=0),
    )
    do(state, task(count=2, tenant="a", memory_mb=1_024))
    assert run_pass(state) == [1]
    why = explain(state, 2, state.last_at)
    assert isinstance(why, Explanation)
    assert {each.code for each in why.blockers} == {told}


def test_a_tenant_above_its_memory_limit_still_starts_tasks_without_gpus() -> None:
    """The limit was lowered while its tasks run. It is about GPU memory alone."""
    state = cluster(node("n1", gpus=4), settings=Settings(quota=Quota(online_ppm=0), memory_margin_mb=0))
    do(state, SetTenant(tenant=Tenant(id=TenantId("a"), max_gpu_memory_mb=8_192)))
    do(state, task(tenant="a", memory_mb=8_192))
    run_pass(state)
    do(state, SetTenant(tenant=Tenant(id=TenantId("a"), max_gpu_memory_mb=4_096)))
    do(state, task(0, tenant="a", cpus=1))
    assert run_pass(state) == [2]


def test_a_trial_of_a_quota_names_the_newest_task_beyond_it_however_small_its_share() -> None:
    state = cluster(node("n1", gpus=2), settings=Settings(quota=Quota(online_ppm=0), memory_margin_mb=0))
    do(state, task())
    do(state, task(share=0.001))
    assert run_pass(state) == [1, 2]
    assert try_quota(state, SetQuota(online_ppm=500_000), state.last_at).drains == (2,)


def test_a_tenant_that_may_run_one_task_holds_one_reservation() -> None:
    """A second one would keep GPUs from others, and could not be used."""
    tenant, other = Tenant(id=TenantId("a"), max_running=1), Tenant(id=TenantId("b"))
    rules = Settings(quota=Quota(online_ppm=0), tenants=(tenant, other), memory_margin_mb=0, reservations=8)
    state = cluster(node("n1", gpus=4), settings=rules)
    do(state, task(4, tenant="b"))
    do(state, task(2, tenant="a", timeout_ms=60_000))
    do(state, task(2, tenant="a", timeout_ms=60_000, cpus=1))
    assert run_pass(state) == [1]
    assert list(state.reservations) == [2]
