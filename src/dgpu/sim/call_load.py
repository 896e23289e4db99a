"""Clients that call functions: two apps of different tenants, with and without a model."""

from __future__ import annotations

import json

from msgspec.structs import replace

from dgpu.core.commands import SubmitTasks
from dgpu.core.model.app import App
from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import Pool, Restart, Shape, TaskSpec
from dgpu.sim.workload import Workload
from dgpu.sim.world import World

_TENANTS = ("red", "blue")
_MODELS = ("", "m1", "m2")


class CallLoad:
    def __init__(self, world: World, workload: Workload) -> None:
        self._world = world
        self._workload = workload
        self._apps = [_app(tenant, world.between(1, 3)) for tenant in _TENANTS]

    def plan(self, submits: int, over_ms: int) -> None:
        for number in range(submits):
            self._workload.plan_one(self._submit(f"call-{number}"), over_ms)

    def _submit(self, key: str) -> SubmitTasks:
        chance, app = self._world.chance, self._world.chance.choice(self._apps)
        code = int(chance.random() < 0.1)
        ms = self._world.between(3_000, 60_000) if chance.random() < 0.4 else self._world.between(1, 1_500)
        model = chance.choice(_MODELS)
        detail = {"entrypoint": f"{app.id}:{ms}:{code}", "ms": ms, "code": code, "model_name": model}
        shape = replace(app.spec.shape, gpus=0, model=model, app=app.id)
        spec = TaskSpec(shape=shape, detail=json.dumps(detail).encode(), timeout_ms=0, max_retries=1_000)
        count = self._world.between(1, 4)
        return SubmitTasks(entries=((count, spec),), apps=(app,), idempotency_key=key, fingerprint=key)


def _app(tenant: str, max_workers: int) -> App:
    """The detail has what a task of the simulation needs, too."""
    detail = {"worker": {"app_id": f"app-{tenant}"}, "ms": 0, "code": 0}
    spec = TaskSpec(
        shape=Shape(tenant_id=TenantId(tenant), pool=Pool.BATCH, priority=50, gpus=1),
        detail=json.dumps(detail, separators=(",", ":")).encode(),
        timeout_ms=0,
        max_retries=0,
        restart=Restart.NEVER,
        worker_of=f"app-{tenant}",
    )
    return App(id=f"app-{tenant}", spec=spec, max_workers=max_workers)
