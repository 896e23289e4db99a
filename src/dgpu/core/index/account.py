"""Accounts: what each tenant holds now and how it stands against the others. Derived from the state, never journaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dgpu.core.index.standings import NOWHERE, Standings
from dgpu.core.model.ids import ShapeId, TenantId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.model.tenant import WEIGHT_MILLI, Tenant
from dgpu.core.model.usage import STEP_MS, Meter, Usage, factor, month_of, weigh

if TYPE_CHECKING:
    from dgpu.core.index.line import KnownShape

_DAY_MS: Final = 86_400_000


class Account:
    """The share is what orders tenants: decayed use, and one step's worth of what it holds now, over its weight. So a
    burst of free GPUs is dealt out in turns, although nobody has used any of them yet.
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
        self.tenant: Tenant | None = None  # None: not known, so without limits of its own
        self.guaranteed_milli = 0
        self.limited = False  # anything but its guarantee and its share decides when its tasks may start
        self.shapes: dict[ShapeId, KnownShape] = {}  # of its tasks
        self.milli = 0  # GPUs held
        self.since = 0  # sum over what it holds: thousandths times the time they are charged up to
        self.running = 0  # tasks
        self.memory_mb = 0
        self.weighed = 0  # decayed use, see usage.Usage
        self.share = 0
        # The range that its share may move in, and nobody before or behind it in the order would notice: see standings.
        self.standing = self.reach = NOWHERE

    def copy(self) -> Account:
        """Without its shapes and its standing, which belong to an index."""
        twin = Account(self.tenant_id)
        twin.tenant, twin.limited, twin.guaranteed_milli = self.tenant, self.limited, self.guaranteed_milli
        twin.milli, twin.since, twin.running = self.milli, self.since, self.running
        twin.memory_mb, twin.weighed, twin.share = self.memory_mb, self.weighed, self.share
        return twin

    def facts(self) -> tuple[object, ...]:
        """For comparison with one derived from scratch."""
        return (self.tenant, self.milli, self.since, self.running, self.memory_mb, self.weighed, self.share)

    def uncharged(self, at: int) -> int:
        return self.milli * at - self.since

    def short_milli(self) -> int:
        """What is missing to its guarantee."""
        return 0 if self.tenant is None else self.guaranteed_milli - self.milli


class Accounts:
    __slots__ = (
        "_day",
        "_factor",
        "_held_factor",
        "_meter",
        "_month",
        "_standings",
        "_step",
        "_tenants",
        "by_tenant",
        "dropped",
        "guaranteed",
        "wall_offset_ms",
    )

    def __init__(self, tenants: Mapping[TenantId, Tenant], meter: Meter) -> None:
        self.by_tenant: dict[TenantId, Account] = {}
        self.dropped: dict[
            TenantId, Account
        ] = {}  # they stand further in front: lines may be listed too far back
        self.guaranteed: dict[TenantId, Account] = {}
        self._tenants = tenants
        self._meter = meter
        self._held_factor = factor(meter, meter.charged_at)  # for what is held now
        self._standings = Standings()
        self._step, self._factor = -1, 0
        self._day, self._month = -1, 0
        self.wall_offset_ms = 0  # months are those of the calendar

    def copy(self, tenants: Mapping[TenantId, Tenant]) -> Accounts:
        twin = Accounts(tenants, self._meter)
        twin.wall_offset_ms = self.wall_offset_ms
        for tenant_id, account in self.by_tenant.items():
            copied = twin.by_tenant[tenant_id] = account.copy()
            twin._standings.move(copied)
            if tenant_id in self.guaranteed:
                twin.guaranteed[tenant_id] = copied
            if tenant_id in self.dropped:
                twin.dropped[tenant_id] = copied
        return twin

    def open(self, tenant_id: TenantId) -> Account:
        account = self.by_tenant.get(tenant_id)
        if account is None:
            account = self.by_tenant[tenant_id] = Account(tenant_id)
            self._introduce(account)
        return account

    def close(self, account: Account, shape_id: ShapeId) -> None:
        """No task has this shape any more. Of a tenant that was never set, nothing remains with its last shape."""
        del account.shapes[shape_id]
        if not account.shapes and account.tenant is None and not account.weighed:
            del self.by_tenant[account.tenant_id]
            self._standings.leave(account)
            self.dropped.pop(account.tenant_id, None)

    def learn(self, usages: Mapping[TenantId, Usage], meter: Meter) -> None:
        """Tenants, use or the meter changed, and with them every share."""
        self._meter = meter
        self._held_factor = factor(meter, meter.charged_at)
        self._step = -1
        for tenant_id in self._tenants.keys() | usages.keys():
            self.open(tenant_id)
        for tenant_id, account in self.by_tenant.items():
            usage = usages.get(tenant_id)
            account.weighed = 0 if usage is None else usage.weighed
            self._introduce(account)

    # what is held

    def hold(self, account: Account, lease: Lease, milli: int) -> None:
        """`milli` is that of the lease. Of a gang, the first rank counts as the task."""
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

    # what time does

    def factor_at(self, at: int) -> int:
        step = at // STEP_MS
        if step != self._step:
            self._step, self._factor = step, factor(self._meter, at)
        return self._factor

    def month_at(self, at: int) -> int:
        """The calendar month of the wall clock."""
        wall_ms = at + self.wall_offset_ms
        day = wall_ms // _DAY_MS
        if day != self._day:
            self._day, self._month = day, month_of(wall_ms)
        return self._month

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
            self.dropped[account.tenant_id] = account

    def _share(self, account: Account) -> int:
        tenant = account.tenant
        weight = WEIGHT_MILLI if tenant is None else tenant.weight_milli
        held = weigh(account.milli * STEP_MS, self._held_factor)
        return (account.weighed + held) * WEIGHT_MILLI // weight
