"""Updates the use of pools and tenants with every lease, and charges tenants for time."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.apply.credentials import forget_secrets
from dgpu.core.apply.services import forget_services
from dgpu.core.events import EpochBegan, QuotaChanged, TenantRemoved, TenantSet, UsageCharged
from dgpu.core.model.ids import TenantId
from dgpu.core.model.lease import Lease
from dgpu.core.model.quota import Quota
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.usage import ONE, Meter, Usage, charged, factor, is_far
from dgpu.core.state import ClusterState

NOTHING_USED: Final = Usage()


def note_released(state: ClusterState, lease: Lease, at: int) -> None:
    """Must run before the task gets another shape."""
    known = state.queue.shapes[state.tasks[lease.task_id].shape_id]
    milli = lease.gpu_milli
    known.pool.used_milli -= milli
    account, accounts = known.account, state.accounts
    if state.tenants and lease.gpu_ids:
        if is_far(state.meter, at):
            state.meter = _moved(state, state.meter.half_life_ms, at)
            accounts.learn(state.usages, state.meter)
        milli_ms = milli * max(0, at - accounts.charged_up_to(lease))
        usage = charged(
            state.usages.get(account.tenant_id, NOTHING_USED),
            milli_ms,
            accounts.factor_at(at),
            state.month_at(at),
        )
        state.usages[account.tenant_id] = usage
        account.weighed = usage.weighed
    accounts.let_go(account, lease, milli)
    if lease.stop_for:
        del state.reclaims[lease.id]
    state.note_freed(account)


# events


def apply_quota(state: ClusterState, event: QuotaChanged) -> None:
    _set_quota(state, event.quota)
    state.stirred = True


def apply_tenant_set(state: ClusterState, event: TenantSet) -> None:
    _know(state, event.tenant, event.at)
    _tenants_changed(state)


def apply_tenant_removed(state: ClusterState, event: TenantRemoved) -> None:
    _forget(state, event.tenant_id)
    forget_secrets(state, event.tenant_id)
    forget_services(state, event.tenant_id)
    _tenants_changed(state)


def apply_charged(state: ClusterState, event: UsageCharged) -> None:
    """Charges all running tasks up to now."""
    _charge(state, event.at)
    _tenants_changed(state)


def adopt_settings(state: ClusterState, event: EpochBegan) -> None:
    """The latest change wins: a new value in the configuration, else the value that was changed live."""
    before, after = state.settings, event.settings
    if state.epoch == 0 or before.quota != after.quota:
        _set_quota(state, after.quota)
    if state.tenants:
        _charge(state, event.at)
    if after.fair_share_half_life_ms != state.meter.half_life_ms:
        state.meter = _moved(state, after.fair_share_half_life_ms, event.at)
    known = {tenant.id: tenant for tenant in before.tenants} if state.epoch else {}
    listed = {tenant.id: tenant for tenant in after.tenants}
    for tenant_id, tenant in listed.items():
        if known.get(tenant_id) != tenant:
            _know(state, tenant, event.at)
    for tenant_id in known.keys() - listed.keys():
        _forget(state, tenant_id)
    _tenants_changed(state)


# leaves


def _set_quota(state: ClusterState, quota: Quota) -> None:
    state.quota = quota
    state.rooms.recount()  # the limits of pools are computed again


def _know(state: ClusterState, tenant: Tenant, at: int) -> None:
    if not state.tenants:
        # No tenant was charged before: running tasks are charged from now on.
        state.meter = replace(state.meter, charged_at=at, landmark_at=at)
        state.usages.clear()
        for account in state.accounts.by_tenant.values():
            account.since = account.milli * at
    state.tenants[tenant.id] = tenant


def _forget(state: ClusterState, tenant_id: TenantId) -> None:
    if state.tenants.pop(tenant_id, None) is not None:
        state.usages.pop(tenant_id, None)


def _tenants_changed(state: ClusterState) -> None:
    state.accounts.learn(state.usages, state.meter)
    for account in state.accounts.by_tenant.values():
        state.accounts.note_freed(account)
    state.stirred = True


def _charge(state: ClusterState, at: int) -> None:
    if is_far(state.meter, at):
        state.meter = _moved(state, state.meter.half_life_ms, at)
    accounts, meter = state.accounts, state.meter
    by_factor, month = factor(meter, at), state.month_at(at)
    for tenant_id, account in accounts.by_tenant.items():
        if account.milli:
            usage = state.usages.get(tenant_id, NOTHING_USED)
            state.usages[tenant_id] = charged(usage, account.uncharged(at), by_factor, month)
            account.since = account.milli * at
    state.meter = replace(meter, charged_at=at)


def _moved(state: ClusterState, half_life_ms: int, at: int) -> Meter:
    """Moves the landmark to now, and stores all use at its present decayed value."""
    meter = state.meter
    by_factor = factor(meter, at)
    for tenant_id, usage in state.usages.items():
        state.usages[tenant_id] = replace(usage, weighed=usage.weighed * ONE // by_factor)
    return Meter(charged_at=meter.charged_at, landmark_at=at, half_life_ms=half_life_ms)
