"""Reservations never bring a cluster to a standstill: where no time limits are known, and pools and levels mix."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from building import returning, spec
from building.lockstep import Twins
from dgpu.core.commands import BeginEpoch, ReportFinished, ReportStarted, RunPass, SubmitTasks
from dgpu.core.events import Event, TaskPlaced, TasksReserved
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.rejections import Rejection
from dgpu.core.replay import replay
from property.test_reservations import World

LEVELS = (50, 50, 10, 80, 50, 10, 100)
LENGTHS_MS = (600, 1_000, 1_400, 2_000, 2_600)
ENDLESS = 4
TENANTS = ("lab", "works", "others")
MANY = settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 1 << 32)


class Busy(World):
    """Tasks without time limits. Some of them do not end until all others have."""

    def __init__(self, nodes: list[int], rules: Settings, random: Random) -> None:
        super().__init__(nodes, rules)
        self.random = random
        self.endless: set[int] = set()
        self.lengths: dict[int, int] = {}

    def ask(self, gpus: int, level: int, length_ms: int | None, **more: object) -> None:
        task_id = self.state.next_task_id
        pool = Pool.ONLINE if level >= 80 else Pool.BATCH
        asked = spec(gpus, command=f"task {task_id}", priority=level, pool=pool, **more)
        if isinstance(self.tried(SubmitTasks(entries=((1, asked),))), Rejection):
            return  # above what its pool or its tenant may ever have
        if length_ms is None:
            self.endless.add(task_id)
        else:
            self.lengths[task_id] = length_ms

    def settle(self) -> None:
        for _ in range(10):
            events = self.do(RunPass())
            changes = [each for each in events if isinstance(each, TasksReserved)]
            assert len(changes) <= 200, "reservations are changed to and fro"
            for event in events:
                self.note(event)
            if not events:
                return
        raise AssertionError("passes do not come to an end")

    def note(self, event: Event) -> None:
        if isinstance(event, TaskPlaced):
            self.do(ReportStarted(lease_id=event.lease_id))
            if event.task_id not in self.endless:
                lasts = self.lengths[event.task_id] * self.random.uniform(1, 1.6) + self.random.randint(
                    0, 400
                )
                heappush(self.ends, (self.at + int(lasts), event.task_id))

    def restart(self) -> None:
        """Nodes register again one by one, and passes run meanwhile."""
        self.at += self.random.randint(500, 3_000)
        self.state, self.twins = replay(self.journal), Twins()
        self.do(BeginEpoch(settings=self.state.settings))
        self.settle()
        back = returning(self.state)
        self.random.shuffle(back)
        for command in back:
            self.do(command)
            self.settle()
            self.at += self.random.choice([0, 0, 5, 50])

    def run(self, restart_after: int) -> None:
        """Until nothing ends any more."""
        self.settle()
        while self.ends:
            restart_after -= 1
            if not restart_after:
                self.restart()
            self.pass_time(max(self.at, self.ends[0][0]))

    def pass_time(self, until: int | None) -> None:
        """What ended during a restart is reported late."""
        while self.ends and (until is None or self.ends[0][0] <= until):
            ended_at, task_id = heappop(self.ends)
            self.at = max(self.at, ended_at)
            for lease_id in self.state.leases_of(self.state.tasks[task_id]):
                self.do(ReportFinished(lease_id=lease_id, outcome=Outcome.EXITED))
            self.settle()

    def end_endless(self) -> None:
        self.lengths.update(dict.fromkeys(self.endless, 1_000))
        for lease in self.state.leases.values():
            heappush(self.ends, (self.at, lease.task_id))
        self.endless.clear()


def rules(**more: object) -> Settings:
    return Settings(memory_margin_mb=0, default_timeout_ms=0, max_timeout_ms=0, **more)  # type: ignore[arg-type]


@MANY
@example(9)  # several tasks of a line reserved quota alone
@example(31)  # the room for a reservation that could start was taken
@given(seeds)
def test_tasks_that_do_not_end_do_not_keep_the_others_waiting(seed: int) -> None:
    """The load of the demo: four of eight GPUs are held for good."""
    random = Random(seed)
    world = Busy([2, 2, 2, 2], rules(reservations=8), random)
    for _ in range(ENDLESS):
        world.ask(1, 100, None)
    for number in range(51):
        gpus = 2 if number % 5 == 0 else 1
        world.ask(gpus, LEVELS[number % len(LEVELS)], LENGTHS_MS[number % len(LENGTHS_MS)])
    world.run(restart_after=random.randint(8, 30))
    assert world.state.waiting_count == 0
    assert len(world.state.leases) == ENDLESS


@MANY
@example(24)  # refused by tenant and pool
@example(72)  # a task within a guarantee had the demand of one that is not
@example(73)  # a grant let a line reserve, with borrowing
@example(4214312352)  # the second task of a line reserved, and quota became free for it
@example(52262616)  # a reservation of another tenant freed what one of this tenant kept of its limits
@given(seeds)
def test_once_they_end_all_start(seed: int) -> None:
    random = Random(seed)
    nodes = [2, *(random.choice([1, 2, 2, 4]) for _ in range(random.choice([1, 2, 3, 5])))]
    quota = Quota(mode=random.choice(list(QuotaMode)), online_ppm=random.choice([300_000, 500_000, 700_000]))
    placement, reservations = random.choice(list(Placement)), random.choice([1, 2, 8])
    tenants = random.choice([(), tuple(tenant(random, name) for name in TENANTS)])
    settings_ = rules(reservations=reservations, placement=placement, quota=quota, tenants=tenants)
    world = Busy(nodes, settings_, random)
    for number in range(40):
        more: dict[str, object] = {"tenant": random.choice(TENANTS)} if tenants else {}
        if random.random() < 0.3:
            more["timeout_ms"] = random.choice([5_000, 60_000])
        length_ms = None if number < ENDLESS else random.choice(LENGTHS_MS)
        world.ask(random.choice([1, 1, 1, 2, 3]), random.choice(LEVELS), length_ms, **more)
    world.run(restart_after=random.randint(2, 30))
    world.end_endless()
    world.run(restart_after=0)
    assert world.state.waiting_count == 0
    assert not world.state.reservations


def tenant(random: Random, name: str) -> Tenant:
    limits = {"max_gpus": (2, 6), "max_running": (1, 4), "guaranteed_gpus": (1, 3)}
    chosen = {limit: random.randint(*bounds) for limit, bounds in limits.items() if random.random() < 0.4}
    return Tenant(id=TenantId(name), **chosen)
