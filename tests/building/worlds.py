"""Random worlds: a small cluster in which everything happens that a command can say. Equal seeds give equal worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from building import START, finished, gpu, node, on, returning, spec
from building.calls import app, call, returned
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    ChangeInventory,
    ChangePriority,
    Command,
    DrainNode,
    HoldTasks,
    LoseNode,
    ObserveCondition,
    ObserveGpu,
    RecoverGpu,
    ReleaseNode,
    ReleaseTasks,
    RemoveNode,
    RemoveTenant,
    ReportCheck,
    ReportStarted,
    ReportWorkers,
    ResumeNode,
    RunPass,
    ScaleService,
    SetQuota,
    SetService,
    SetTenant,
    StepServices,
    SubmitTasks,
    Tick,
    WorkerReport,
)
from dgpu.core.decision import Decision
from dgpu.core.execute import execute
from dgpu.core.model.array import size
from dgpu.core.model.health import HealthRules
from dgpu.core.model.ids import GpuId, NodeId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.service import ServiceSpec
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, Pool, Restart, TaskSpec, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.worker import LoadedModel
from dgpu.core.rules.replicas import Reading
from dgpu.core.state import ClusterState

APPS: Final = ("fast", "slow")
MODELS: Final = ("", "m1", "m2")


class World:
    """With many nodes, indexes answer where a small cluster is searched."""

    def __init__(self, seed: int, nodes: int = 4) -> None:
        self.random = Random(seed)
        self._names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.at = START
        self.state = ClusterState()
        self.settings = self._settings()
        self._actions = self._weighted()

    def begin(self) -> Iterator[Command]:
        yield BeginEpoch(at=self.at, settings=self.settings)
        for name in self._names:
            yield self._node(name)

    def step(self) -> Iterator[tuple[Command, Decision]]:
        """One thing happens, and most times a pass follows."""
        random = self.random
        self.at += random.choice([1, 1, 50, 1_000, 5_000, 60_000])
        for command in (*random.choice(self._actions)(), *self._pass()):
            known = replace(command, at=self.at)
            yield known, execute(self.state, known)

    # tasks

    def _spec(self) -> TaskSpec:
        random = self.random
        kind = random.choice(["one", "one", "several", "share", "share", "gang", "host", "model"])
        return spec(
            {"several": random.choice([2, 3]), "host": 0}.get(kind, 1),
            nodes=2 if kind == "gang" else 1,
            share=random.choice([0.25, 0.5]) if kind == "share" else 1,
            model=random.choice(MODELS) if kind == "model" else "",
            tenant=random.choice("abcd"),
            pool=random.choice(list(Pool)),
            priority=random.choice([10, 50, 50, 80]),
            models=random.choice([(), (), ("V100",), ("T4", "V100")]),
            memory_mb=random.choice([0, 0, 4_096, 8_192]),
            cpus=random.choice([0, 0, 1, 3]),
            ram_mb=random.choice([0, 0, 512, 1_024]),
            timeout_ms=random.choice([None, 1_000, 60_000, 600_000]),
            max_retries=random.choice([0, 1, 3]),
            restart=random.choice([Restart.NEVER, Restart.NEVER, Restart.ON_FAILURE]),
            allocation=kind == "one" and random.random() < 0.1,
            held=random.random() < 0.05,
            constraints=random.choice(
                [(), (), (), (), (("disk", True, ("ssd",)),), (("disk", False, ("ssd",)),)]
            ),
            after=(on(random.choice(sorted(self.state.tasks)), random.choice(["ok", "any", "failed"])),)
            if self.state.tasks and random.random() < 0.1
            else (),
            array="0-5%2" if kind == "one" and random.random() < 0.15 else "",
            task_type=random.choice(["", "stability"]),
            atoms=random.choice([0, 200]),
        )

    def _submit(self) -> Iterator[Command]:
        asked = self._spec()
        count = size(asked.array) if asked.array else self.random.randint(1, len(self._names))
        key = self.random.choice([*[""] * 12, "k1", "k2"])
        yield SubmitTasks(entries=((count, asked),), idempotency_key=key, fingerprint=str(count))

    def _call(self) -> Iterator[Command]:
        name = self.random.choice(APPS)
        workers = 1 if name == "fast" else 3
        mine = app(name, max_workers=workers, tenant="a", memory_mb=4_096, share=0.5 if name == "fast" else 1)
        yield call(mine, count=self.random.randint(1, 4), model=self.random.choice(MODELS), max_retries=1)

    def _order(self) -> Iterator[Command]:
        random = self.random
        known = [task.id for task in self.state.tasks.values() if not task.status.is_final]
        if known:
            some = tuple(random.sample(known, min(2, len(known))))
            yield random.choice(
                [
                    CancelTasks(task_ids=some),
                    CancelTasks(status=TaskStatus.PENDING, tenant_id=TenantId(random.choice("abcd"))),
                    HoldTasks(task_ids=some),
                    ReleaseTasks(task_ids=some),
                    ChangePriority(priority=random.choice([20, 60]), task_ids=some),
                ]
            )

    # runs

    def _report(self) -> Iterator[Command]:
        random, leases = self.random, self.state.leases
        for lease_id in random.sample(sorted(leases), min(len(leases), random.randint(1, 4))):
            lease = leases.get(lease_id)
            if lease is None or (lease.task_id in self.state.workers and random.random() < 0.9):
                continue
            if not lease.started and random.random() < 0.7:
                yield ReportStarted(lease_id=lease_id, ago_ms=random.choice([0, 30]))
            elif lease.worker:
                outcome = random.choice([Outcome.EXITED, Outcome.EXITED, Outcome.NODE_FAULT])
                yield returned(lease_id, outcome, ran_ms=random.choice([5, 400, 90_000]))
            else:
                yield finished(
                    lease_id,
                    random.choice([0, 0, 1]),
                    outcome=random.choice([*[Outcome.EXITED] * 6, *Outcome]),
                    ago_ms=random.choice([0, 20]),
                    stuck_gpus=lease.gpu_ids[:1] if random.random() < 0.1 else (),
                    peak_memory_mb=random.choice([0, 3_000, 7_000]),
                    error=random.choice(["", "CUDA out of memory"]),
                )

    def _workers(self) -> Iterator[Command]:
        random = self.random
        for task_id in list(self.state.workers):
            lease_id = self.state.tasks[task_id].lease_id
            if lease_id:
                yield ReportStarted(lease_id=lease_id)
                names = random.sample(MODELS[1:], random.randint(0, 2))
                loading, load_ms = random.random() < 0.3, random.choice([0, 2_000, 30_000])
                models = tuple(LoadedModel(name=name, loading=loading, load_ms=load_ms) for name in names)
                report = WorkerReport(lease_id=lease_id, ready=random.random() < 0.9, models=models)
                yield ReportWorkers(workers=(report,))

    def _service(self) -> Iterator[Command]:
        random, tenant = self.random, TenantId("d")
        task = spec(tenant="d", pool=Pool.ONLINE, restart=Restart.ALWAYS, timeout_ms=0)
        serves = ServiceSpec(
            task=task, port=80, min_replicas=1, max_replicas=random.choice([1, 2, 3]), calm_ms=5_000
        )
        yield random.choice(
            [
                SetService(tenant_id=tenant, name="web", spec=serves),
                ScaleService(tenant_id=tenant, name="web", max_replicas=random.choice([1, 4])),
                self._readings(),
                self._readings(),
            ]
        )

    def _readings(self) -> Command:
        random = self.random
        replicas = [each.task_id for service in self.state.services.values() for each in service.replicas]
        return StepServices(
            readings={task_id: Reading(random.random() < 0.8) for task_id in replicas},
            load={name: random.choice([0, 4, 40]) for name in self.state.services},
        )

    # nodes and GPUs

    def _gpus(self, name: str) -> tuple[Gpu, ...]:
        model = "T4" if name == "n3" else "V100"
        cards = [
            gpu(
                f"GPU-{name}-{index}",
                on=name,
                index=index,
                model=model,
                memory_mb=8_192 if index == 2 else 16_384,
            )
            for index in range(4 if name == "n4" else 3)
        ]
        return tuple(cards[: self.random.choice([len(cards)] * 5 + [1])])

    def _node(self, name: str) -> Command:
        labels = {"disk": "ssd"} if name in {"n1", "n4"} else {}
        return node(name, self._gpus(name), cpus=6, ram_mb=2_048, labels=labels)

    def _operate(self) -> Iterator[Command]:
        random, known = self.random, sorted(self.state.nodes)
        if not known:
            return
        name = NodeId(random.choice(known))
        yield random.choice(
            [
                DrainNode(node_id=name, reason="repair"),
                ResumeNode(node_id=name),
                ResumeNode(node_id=name),
                LoseNode(node_id=name, reason="silent"),
                ReleaseNode(node_id=name, reason="lease over"),
                RemoveNode(node_id=name),
                ChangeInventory(node_id=name, gpus=self._gpus(name)),
            ]
        )

    def _register(self) -> Iterator[Command]:
        away = [
            name
            for name in self._names
            if name not in self.state.nodes or self.state.nodes[NodeId(name)].offline_since
        ]
        if away or self.random.random() < 0.2:
            yield self._node(self.random.choice(away or self._names))

    def _observe(self) -> Iterator[Command]:
        random, known = self.random, sorted(self.state.gpus)
        if not known:
            return
        gpu_id = GpuId(random.choice(known))
        health = self.state.health.get(gpu_id)
        yield random.choice(
            [
                ObserveGpu(gpu_id=gpu_id, foreign_mb=random.choice([0, 4_096])),
                ObserveGpu(
                    gpu_id=gpu_id, foreign_mb=0, fault="Xid 79", fault_cause=random.choice(["xid", "lost"])
                ),
                ObserveCondition(
                    gpu_id=gpu_id,
                    load_band=random.randint(0, 2),
                    heat_band=random.randint(0, 1),
                    warm=("m1",),
                ),
                ReportCheck(
                    gpu_id=gpu_id,
                    number=health.checks if health else 0,
                    ok=random.random() < 0.7,
                    evidence="checked",
                ),
                RecoverGpu(gpu_id=gpu_id, reason="repaired"),
            ]
        )

    # the scheduler

    def _settings(self) -> Settings:
        random = self.random
        return Settings(
            memory_margin_mb=random.choice([0, 1_024]),
            default_timeout_ms=random.choice([0, 3_600_000]),
            placement=random.choice(list(Placement)),
            reservations=random.choice([0, 1, 4, 8]),
            ageing_ms=random.choice([0, 10_000]),
            max_leases=random.choice([4, 64]),
            keep_finished=10,
            keep_finished_ms=200_000,
            idempotency_ms=400_000,
            memory_ramp_up_ms=100,
            worker_idle_ms=30_000,
            health=HealthRules(
                cool_down_ms=5_000, give_up_ms=300_000, check_timeout_ms=20_000, parole_ms=60_000
            ),
            quota=Quota(
                mode=random.choice(list(QuotaMode)),
                online_ppm=random.choice([300_000, 500_000]),
                reclaim=random.choice(list(Reclaim)),
            ),
            tenants=random.choice([(), self._tenants(), self._tenants()]),
        )

    def _tenants(self) -> tuple[Tenant, ...]:
        return (
            Tenant(id=TenantId("a"), max_gpus=6, weight_milli=2_000),
            Tenant(id=TenantId("b"), max_gpus=2, gpu_hours_milli=500),
            Tenant(id=TenantId("c"), max_gpu_memory_mb=3 * 8_192, guaranteed_gpus=2),
            Tenant(id=TenantId("d"), max_running=4),
        )

    def _change_rules(self) -> Iterator[Command]:
        random = self.random
        limits = Tenant(
            id=TenantId(random.choice("abcd")), max_gpus=random.choice([None, 1, 4]), guaranteed_gpus=1
        )
        yield random.choice(
            [
                SetQuota(online_ppm=random.choice([200_000, 600_000])),
                SetQuota(mode=random.choice(list(QuotaMode)), reclaim=random.choice(list(Reclaim))),
                SetTenant(tenant=limits),
                RemoveTenant(tenant_id=TenantId("b")),
            ]
        )

    def _restart(self) -> Iterator[Command]:
        self.settings = self._settings()
        yield BeginEpoch(settings=self.settings)
        yield from returning(self.state)

    def _tick(self) -> Iterator[Command]:
        yield Tick(history_at=self.at)

    def _pass(self) -> Iterator[Command]:
        if self.random.random() < 0.8:
            limit = self.random.choice([1, 1_000, 1_000])
            yield RunPass(limit=limit, full=self.random.random() < 0.1)

    def _weighted(self) -> list[Callable[[], Iterator[Any]]]:
        often = [self._submit] * 6 + [self._report] * 8 + [self._call] * 3 + [self._workers] * 4
        at_times = [self._order, self._service, self._register, self._observe, self._tick] * 2
        return [*often, *at_times, self._operate, self._change_rules, self._restart]
