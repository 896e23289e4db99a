"""Accounts and pools: the current use of each tenant with its place among the others, and of each pool with its limit.

Derived from the state, never journaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dgpu.core.index.standings import NOWHERE, Standings
from dgpu.core.model.ids import ShapeId, TenantId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import WHOLE_MILLI, Pool
from dgpu.core.model.tenant import WEIGHT_MILLI, Tenant
from dgpu.core.model.usage import STEP_MS, Meter, Usage, factor, weigh

if TYPE_CHECKING:
    from dgpu.core.index.line import KnownShape, Line


class Account:
    """The share orders tenants. It is the decayed use plus one step's charge of the current use, divided by the weight.
    So a burst of free GPUs is distributed in turns, although no tenant has used any of them yet.
    """

    __slots__ = (
        "guaranteed_milli",
        "limited",
        "memory_mb",
        "milli",
        "reach",
        "running",
        "shapes",
        "share",
        "since",
        "standing",
        "tenant",
        "tenant_id",
        "weighed",
    )

    def __init__(self, tenant_id: TenantId) -> None:
        self.tenant_id = tenant_id
        self.tenant: Tenant | None = None  # None: unknown, so without limits of its own
        self.guaranteed_milli = 0
        self.limited = False  # a limit besides guarantee and share decides when its tasks may start
        self.shapes: dict[ShapeId, KnownShape] = {}  # of its tasks
        self.milli = 0  # GPUs held
        self.since = 0  # sum over its leases: thousandths times the time up to which they are charged
        self.running = 0  # tasks
        self.memory_mb = 0
        self.weighed = 0  # decayed use, see usage.Usage
        self.share = 0
        # The share may move within this range without changing the order of tenants: see standings.
        self.standing = self.reach = NOWHERE

    def copy(self) -> Account:
        """A copy without shapes and standing, which belong to an index."""
        twin = Account(self.tenant_id)
        twin.tenant, twin.limited, twin.guaranteed_milli = self.tenant, self.limited, self.guaranteed_milli
        twin.milli, twin.since, twin.running = self.milli, self.since, self.running
        twin.memory_mb, twin.weighed, twin.share = self.memory_mb, self.weighed, self.share
        return twin

    def facts(self) -> tuple[object, ...]:
        """For comparison with an account derived from scratch."""
        return (self.tenant, self.milli, self.since, self.running, self.memory_mb, self.weighed, self.share)

    def uncharged(self, at: int) -> int:
        return self.milli * at - self.since

    def short_milli(self) -> int:
        """The unused part of the guarantee."""
        return 0 if self.tenant is None else self.guaranteed_milli - self.milli


class Accounts:
    __slots__ = (
        "_dropped",
        "_factor",
        "_freed",
        "_held_factor",
        "_meter",
        "_standings",
        "_step",
        "_tenants",
        "by_tenant",
        "guaranteed",
    )

    def __init__(self, tenants: Mapping[TenantId, Tenant], meter: Meter) -> None:
        self.by_tenant: dict[TenantId, Account] = {}
        self._dropped: dict[
            TenantId, Account
        ] = {}  # tenants that moved ahead: their lines may be listed too late
        self._freed: dict[TenantId, Account] = {}  # tenants that use less, or have other limits
        self.guaranteed: dict[TenantId, Account] = {}
        self._tenants = tenants
        self._meter = meter
        self._held_factor = factor(meter, meter.charged_at)  # for current use
        self._standings = Standings()
        self._step, self._factor = -1, 0

    def copy(self, tenants: Mapping[TenantId, Tenant]) -> Accounts:
        twin = Accounts(tenants, self._meter)
        for tenant_id, account in self.by_tenant.items():
            copied = twin.by_tenant[tenant_id] = account.copy()
            twin._standings.move(copied)
            if tenant_id in self.guaranteed:
                twin.guaranteed[tenant_id] = copied
            if tenant_id in self._dropped:
                twin._dropped[tenant_id] = copied
            if tenant_id in self._freed:
                twin._freed[tenant_id] = copied
        return twin

    def open(self, tenant_id: TenantId) -> Account:
        account = self.by_tenant.get(tenant_id)
        if account is None:
            account = self.by_tenant[tenant_id] = Account(tenant_id)
            self._introduce(account)
        return account

    def close(self, account: Account, shape_id: ShapeId) -> None:
        """No task has this shape any more. An account without settings is removed with its last shape."""
        del account.shapes[shape_id]
        if not account.shapes and account.tenant is None and not account.weighed:
            del self.by_tenant[account.tenant_id]
            self._standings.leave(account)
            self._dropped.pop(account.tenant_id, None)
            self._freed.pop(account.tenant_id, None)

    def learn(self, usages: Mapping[TenantId, Usage], meter: Meter) -> None:
        """Tenants, use or the meter changed, and so did every share."""
        self._meter = meter
        self._held_factor = factor(meter, meter.charged_at)
        self._step = -1
        for tenant_id in self._tenants.keys() | usages.keys():
            self.open(tenant_id)
        for tenant_id, account in self.by_tenant.items():
            usage = usages.get(tenant_id)
            account.weighed = 0 if usage is None else usage.weighed
            self._introduce(account)

    def take_dropped(self) -> list[Account]:
        """The tenants that moved ahead since the last call."""
        dropped = list(self._dropped.values())
        self._dropped.clear()
        return dropped

    def note_freed(self, account: Account) -> None:
        self._freed[account.tenant_id] = account

    def take_freed(self) -> list[Account]:
        """The tenants that use less since the last call, or have other limits."""
        freed = list(self._freed.values())
        self._freed.clear()
        return freed

    # current use

    def hold(self, account: Account, lease: Lease, milli: int) -> None:
        """`milli` is that of the lease. In a gang, the first rank counts as the task."""
        if not lease.rank:
            account.running += 1
        if not milli:
            return
        account.milli += milli
        account.since += milli * self.charged_up_to(lease)
        if lease.gpu_memory_mb:
            account.memory_mb += lease.gpu_memory_mb * len(lease.gpu_ids)
        if self._tenants:
            share = account.share = self._share(account)
            if share > account.reach:
                self._restand(account)

    def let_go(self, account: Account, lease: Lease, milli: int) -> None:
        if not lease.rank:
            account.running -= 1
        if not milli:
            return
        account.milli -= milli
        account.since -= milli * self.charged_up_to(lease)
        account.memory_mb -= lease.gpu_memory_mb * len(lease.gpu_ids)
        if self._tenants:
            self.rekey(account)

    def charged_up_to(self, lease: Lease) -> int:
        granted_at, charged_at = lease.granted_at, self._meter.charged_at
        return granted_at if granted_at > charged_at else charged_at  # noqa: FURB136 - asked for every lease

    def rekey(self, account: Account) -> None:
        share = account.share = self._share(account)
        if not account.standing <= share <= account.reach:
            self._restand(account)

    # time

    def factor_at(self, at: int) -> int:
        step = max(0, at - self._meter.landmark_at) // STEP_MS  # those of `factor`: a step has one factor
        if step != self._step:
            self._step, self._factor = step, factor(self._meter, at)
        return self._factor

    # leaves

    def _introduce(self, account: Account) -> None:
        tenant = account.tenant = self._tenants.get(account.tenant_id)
        account.limited = tenant is not None and tenant.limits_grants
        account.guaranteed_milli = 0 if tenant is None else WHOLE_MILLI * tenant.guaranteed_gpus
        self.guaranteed.pop(account.tenant_id, None)
        if tenant is not None and tenant.guaranteed_gpus:
            self.guaranteed[account.tenant_id] = account
        account.share = self._share(account) if self._tenants else 0
        if not account.standing <= account.share <= account.reach:
            self._restand(account)

    def _restand(self, account: Account) -> None:
        before = account.standing
        self._standings.move(account)
        if account.standing < before:
            self._dropped[account.tenant_id] = account

    def _share(self, account: Account) -> int:
        tenant = account.tenant
        weight = WEIGHT_MILLI if tenant is None else tenant.weight_milli
        held = weigh(account.milli * STEP_MS, self._held_factor)
        return (account.weighed + held) * WEIGHT_MILLI // weight


class PoolUse:
    """Tasks without GPUs belong to no pool: no quota applies to them."""

    __slots__ = ("limit_milli", "other", "pool", "ready", "used_milli")

    def __init__(self, pool: Pool | None) -> None:
        self.pool = pool
        self.other: PoolUse | None = None  # the other pool
        self.used_milli = 0  # held by leases
        self.limit_milli = 0  # the pool's quota, plus its use of GPUs that do not count
        self.ready: dict[Line, None] = {}  # lines with a task that may be placed


def new_pools() -> dict[Pool | None, PoolUse]:
    pools: dict[Pool | None, PoolUse] = {pool: PoolUse(pool) for pool in (None, *Pool)}
    online, batch = pools[Pool.ONLINE], pools[Pool.BATCH]
    online.other, batch.other = batch, online
    return pools
