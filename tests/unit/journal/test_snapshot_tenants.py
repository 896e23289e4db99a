"""Quota, tenants and their use survive a snapshot."""

from __future__ import annotations

from building import START, cluster, do, finished, node, run_pass, task
from dgpu.core.commands import SetQuota, SetTenant, Tick
from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.core.model.tenant import Tenant
from dgpu.journal.snapshot import decode_snapshot, encode_snapshot


def test_quota_tenants_and_their_use_survive_a_snapshot() -> None:
    state = cluster(node("n1", gpus=4))
    do(state, SetQuota(online_ppm=123_456))
    for name in ("a", "b"):
        do(state, SetTenant(tenant=Tenant(id=name, max_gpus=3, gpu_hours_milli=5_000)))
        do(state, task(tenant=name, count=3))
    run_pass(state)
    do(state, Tick(at=START + 200_000))
    do(state, finished(1))
    again = decode_snapshot(encode_snapshot(state, index=7, epoch=1), "x").state
    assert (again.quota, again.tenants, again.usages, again.meter) == (
        state.quota,
        state.tenants,
        state.usages,
        state.meter,
    )
    assert digest(again) == digest(state)
    check_invariants(again)
    assert run_pass(again) == run_pass(state)
