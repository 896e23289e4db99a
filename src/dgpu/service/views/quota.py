"""Pools and tenants as responses."""

from __future__ import annotations

from dgpu.core.decide.quota import waiting_count
from dgpu.core.foresight.trial import QuotaTrial
from dgpu.core.index.account import Account
from dgpu.core.index.limits import quota_of
from dgpu.core.model.ids import TenantId, task_name
from dgpu.core.model.quota import MILLION
from dgpu.core.model.task import WHOLE_MILLI, Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.usage import HOUR_MS, decayed
from dgpu.core.rules.admission import available_milli, kept_milli, lines_of, spent, used_milli
from dgpu.core.state import ClusterState
from dgpu.wire.cluster_answers import (
    PoolQuota,
    QuotaAnswer,
    QuotaEffect,
    TenantAnswer,
    TenantList,
    TenantUse,
)
from dgpu.wire.problem import problem_of


def quota_answer(state: ClusterState, at: int) -> QuotaAnswer:
    parts = quota_of(state)
    return QuotaAnswer(
        total_gpus=parts.online + parts.batch,
        online_percent=state.quota.online_ppm / MILLION,
        mode=state.quota.mode.value,
        reclaim=state.quota.reclaim.value,
        online=_pool(state, Pool.ONLINE),
        batch=_pool(state, Pool.BATCH),
        tenants=[_use(state, account, at) for account in _in_use(state)],
    )


def tenant_list(state: ClusterState, at: int) -> TenantList:
    tenants = [tenant_answer(state, state.tenants[name], at) for name in sorted(state.tenants)]
    return TenantList(total=len(tenants), tenants=tenants)


def tenant_answer(state: ClusterState, tenant: Tenant, at: int) -> TenantAnswer:
    hours = tenant.gpu_hours_milli
    return TenantAnswer(
        id=tenant.id,
        max_gpus=tenant.max_gpus,
        guaranteed_gpus=tenant.guaranteed_gpus,
        weight=tenant.weight_milli / 1_000,
        max_running=tenant.max_running,
        max_waiting=tenant.max_waiting,
        max_gpu_memory_mb=tenant.max_gpu_memory_mb,
        max_priority=tenant.max_priority,
        pools=[pool.value for pool in tenant.pools],
        gpu_hours_per_month=None if hours is None else hours / 1_000,
        use=_use(state, state.accounts.open(tenant.id), at),
    )


def quota_effect(state: ClusterState, trial: QuotaTrial) -> QuotaEffect:
    def pool(which: Pool) -> PoolQuota:
        quota, used = trial.parts.milli(which), trial.used_milli[which]
        return _pool_quota(state, which, quota, used, trial.available_milli[which])

    def names(task_ids: tuple[int, ...]) -> list[str]:
        return [task_name(task_id) for task_id in task_ids]  # type: ignore[arg-type]

    return QuotaEffect(
        online=pool(Pool.ONLINE),
        batch=pool(Pool.BATCH),
        starts=names(trial.starts),
        waits=names(trial.waits),
        drains=names(trial.drains),
        stops=names(trial.stops),
        rejected=None if trial.refused is None else problem_of(trial.refused),
    )


def _pool(state: ClusterState, pool: Pool) -> PoolQuota:
    quota, used = quota_of(state).milli(pool), used_milli(state, pool)
    return _pool_quota(state, pool, quota, used, available_milli(state, pool))


def _pool_quota(state: ClusterState, pool: Pool, quota: int, used: int, available: int) -> PoolQuota:
    return PoolQuota(
        quota=quota // WHOLE_MILLI,
        used=used / WHOLE_MILLI,
        available=available / WHOLE_MILLI,
        borrowed=max(0, used - quota) / WHOLE_MILLI,
        waiting=sum(line.ready_count for line in state.queue.pools[pool].ready),
    )


def _in_use(state: ClusterState) -> list[Account]:
    """Known tenants, and tenants that have tasks."""
    accounts = state.accounts.by_tenant
    return [
        accounts[name]
        for name in sorted(accounts)
        if name in state.tenants or accounts[name].running or any(map(len, lines_of(accounts[name])))
    ]


def _use(state: ClusterState, account: Account, at: int) -> TenantUse:
    tenant_id: TenantId = account.tenant_id
    usage = state.usages.get(tenant_id)
    uncharged = account.uncharged(max(at, state.meter.charged_at)) if state.tenants else 0
    weights = sum(tenant.weight_milli for tenant in state.tenants.values())
    return TenantUse(
        tenant_id=tenant_id,
        gpus_used=account.milli / WHOLE_MILLI,
        gpu_memory_mb=account.memory_mb,
        running=account.running,
        waiting=waiting_count(state, tenant_id),
        gpus_kept=kept_milli(state, account) / WHOLE_MILLI,
        gpu_hours_this_month=(spent(state, account) + uncharged) / 1_000 / HOUR_MS,
        recent_gpu_hours=0 if usage is None else decayed(usage, state.meter, at) / 1_000 / HOUR_MS,
        share=0 if account.tenant is None or not weights else account.tenant.weight_milli / weights,
    )
