"""Services: the number of replicas, roll-outs, failures and scaling, step by step and without I/O."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from building import cluster, do, finished, node, run_pass, spec, tried
from dgpu.core.commands import (
    CancelTasks,
    DeleteService,
    ReportStarted,
    ScaleService,
    SetService,
    SetTenant,
    StepServices,
)
from dgpu.core.decide.services import MAX_STARTS
from dgpu.core.digest import digest
from dgpu.core.invariants import check_invariants
from dgpu.core.model.service import STALLED, STOP_FIRST, Service, ServiceSpec
from dgpu.core.model.task import Outcome, Restart, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.rejections import ExceedsQuota, NeverFits, UnknownService
from dgpu.core.rules.replicas import MAX_FAILURES, Reading
from dgpu.core.state import ClusterState

TASK = replace(spec(), restart=Restart.ALWAYS)
KEY = "default/chat"


def of(command: str = "v1", **more) -> ServiceSpec:
    task = replace(TASK, detail=TASK.detail.replace(b'"command":"', b'"command":"' + command.encode()))
    return ServiceSpec(task=task, port=8000, **more)


def serve(state: ClusterState, spec: ServiceSpec, **more):
    return tried(state, SetService(tenant_id="default", name="chat", spec=spec, **more))


def scale(state: ClusterState, **limits: int):
    return tried(state, ScaleService(tenant_id="default", name="chat", **limits))


class World:
    """A cluster in which replicas start at once, and are ready if `good` has their generation."""

    def __init__(self, gpus: int = 8) -> None:
        self.state = cluster(node("n1", gpus=gpus))
        self.bad: set[int] = set()  # generations that are never ready
        self.requests: dict[int, int] = {}
        self.load = 0
        self.now = 0

    @property
    def service(self) -> Service:
        return self.state.services[KEY]

    @property
    def ready(self) -> int:
        return sum(each.ready and not each.leaving_at for each in self.service.replicas)

    def step(self, ms: int = 1_000) -> None:
        state = self.state
        self.now = at = max(self.now, state.last_at) + ms
        readings = {
            each.task_id: Reading(each.generation not in self.bad, self.requests.get(each.task_id, 0))
            for each in self.service.replicas
        }
        do(state, StepServices(readings=readings, load={KEY: self.load}), at=at)
        for lease in [each for each in state.leases.values() if state.tasks[each.task_id].cancelling]:
            do(state, finished(lease.id, outcome=Outcome.STOPPED))
        run_pass(state)
        for lease in [each for each in state.leases.values() if not each.started]:
            do(state, ReportStarted(lease_id=lease.id))
        check_invariants(state)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def generations(self) -> list[int]:
        return [each.generation for each in self.service.replicas]

    def texts(self) -> str:
        return "\n".join(text for _, text in self.service.notes)


def test_replicas_are_tasks_and_a_cancelled_one_is_replaced() -> None:
    world = World()
    serve(world.state, of(min_replicas=2, max_replicas=2))
    world.steps(2)
    assert world.ready == 2
    first = world.service.replicas[0].task_id
    assert world.state.tasks[first].restart is Restart.ALWAYS
    do(world.state, CancelTasks(task_ids=(first,)))
    world.steps(3)
    assert world.ready == 2
    assert first not in [each.task_id for each in world.service.replicas]
    assert f"task-{first} was cancelled or has ended" in world.texts()


def test_a_new_generation_replaces_one_by_one_and_as_many_as_wanted_stay_ready() -> None:
    world = World()
    serve(world.state, of(min_replicas=3, max_replicas=3))
    world.steps(3)
    serve(world.state, of("v2", min_replicas=3, max_replicas=3))
    for _ in range(30):
        world.step()
        assert world.ready >= 3
        assert len(world.service.replicas) <= 4 + sum(
            bool(each.leaving_at) for each in world.service.replicas
        )
    assert world.generations() == [2, 2, 2]
    running = [task for task in world.state.tasks.values() if task.status is TaskStatus.RUNNING]
    assert len(running) == 3


def test_a_replica_with_requests_in_progress_is_stopped_when_they_have_ended_or_too_late() -> None:
    world = World()
    serve(world.state, of())
    world.steps(3)
    old = world.service.replicas[0].task_id
    world.requests[old] = 1
    serve(world.state, of("v2", drain_ms=30_000))
    world.steps(10)
    (leaving,) = [each for each in world.service.replicas if each.leaving_at]
    assert leaving.task_id == old
    assert not world.state.tasks[old].cancelling
    world.requests[old] = 0
    world.steps(2)
    assert world.generations() == [2]


def test_a_roll_out_that_never_gets_ready_stops_and_says_so_and_another_one_goes_on() -> None:
    world = World()
    serve(world.state, of(min_replicas=2, max_replicas=2))
    world.steps(3)
    world.bad = {2}
    serve(world.state, of("v2", min_replicas=2, max_replicas=2, start_ms=5_000))
    for _ in range(60):
        world.step()
        assert world.ready == 2, "the old generation serves"
    assert world.service.status == STALLED
    assert world.generations() == [1, 1]
    assert f"generation 2 was stopped: {MAX_FAILURES} replicas never became ready" in world.texts()
    serve(world.state, of("v3", min_replicas=2, max_replicas=2))
    world.steps(20)
    assert (world.service.status, world.generations()) == ("", [3, 3])
    serve(world.state, world.service.spec, rolls_back=True)
    assert world.service.generation == 1


def test_a_restart_replaces_each_replica_by_one_of_the_same_task() -> None:
    world = World()
    serve(world.state, of(min_replicas=2, max_replicas=2))
    world.steps(3)
    serve(world.state, of("ignored"), restarts=True, set_by="ann")
    assert world.service.spec == of(min_replicas=2, max_replicas=2)
    for _ in range(20):
        world.step()
        assert world.ready >= 2
    assert world.generations() == [2, 2]
    assert "restarted as generation 2 by ann" in world.texts()
    assert isinstance(serve(World().state, of(), restarts=True), UnknownService)


def test_a_replica_that_is_not_ready_is_replaced_with_longer_and_longer_delays() -> None:
    world = World()
    serve(world.state, of(unready_ms=3_000, start_ms=3_000))
    world.steps(3)
    world.bad = {1}
    world.steps(200)
    delays = [
        int(text.rpartition(" in ")[2].removesuffix(" s"))
        for _, text in world.service.notes
        if "next try" in text
    ]
    assert delays == sorted(delays)
    assert delays[-1] >= 4 * delays[0]
    assert "not ready for 3 s" in world.texts()


def test_the_number_follows_requests_up_at_once_and_down_slowly() -> None:
    world = World()
    serve(world.state, of(min_replicas=1, max_replicas=4, requests=4, calm_ms=10_000))
    world.steps(3)
    world.load = 11
    world.steps(3)
    assert world.ready == 3
    assert "scaled from 1 to 3: 11 requests in progress, 4 per replica" in world.texts()
    world.load = 0
    world.steps(5)
    world.load = 12
    world.step()
    world.load = 0
    world.steps(9)
    assert world.ready == 3, "a short calm changes nothing"
    world.steps(30)
    assert len(world.service.replicas) == 1


def test_without_a_spare_gpu_stop_first_updates_and_start_first_waits() -> None:
    for replace_how, expected in ((STOP_FIRST, [2]), ("start-first", [1, 2])):
        world = World(gpus=1)
        serve(world.state, of())
        world.steps(3)
        serve(world.state, of("v2", replace=replace_how))
        world.steps(10)
        assert sorted(world.generations()) == expected


def test_refusals_and_deletion() -> None:
    world = World(gpus=1)
    assert isinstance(serve(world.state, of(), rolls_back=True), UnknownService)
    large = ServiceSpec(task=replace(TASK, shape=replace(TASK.shape, gpus=9)), port=1)
    assert isinstance(serve(world.state, large), ExceedsQuota | NeverFits)
    serve(world.state, of())
    assert serve(world.state, of()) == (), "the same again"
    world.steps(2)
    delete = DeleteService(tenant_id="default", name="chat")
    do(world.state, delete)
    assert not world.state.services
    assert all(task.cancelling for task in world.state.tasks.values())
    assert isinstance(tried(world.state, delete), UnknownService)


def test_another_number_of_replicas_starts_no_failed_generation_again() -> None:
    """A stalled service is served by the generation before; more replicas are more of that one."""
    world = World()
    serve(world.state, of(start_ms=4_000))
    world.steps(5)
    world.bad = {2}
    serve(world.state, of("v2", start_ms=4_000))
    for _ in range(10):
        world.step(400_000)
    assert world.service.status == STALLED
    scale(world.state, min_replicas=2, max_replicas=2)
    world.steps(5)
    assert world.service.status == STALLED
    assert world.generations() == [1, 1]


def test_replicas_of_all_services_in_a_step_count_for_the_limits_of_their_tenant() -> None:
    state = cluster(node("n1", gpus=8))
    do(state, SetTenant(tenant=Tenant(id="default", max_waiting=3)))
    for name in ("one", "two"):
        do(state, SetService(name=name, tenant_id="default", spec=of(min_replicas=2, max_replicas=2)))
    do(state, StepServices())
    assert len(state.tasks) == 2
    first, second = (state.services[key] for key in sorted(state.services))
    assert (len(first.replicas), len(second.replicas)) == (2, 0)
    assert "no replica can be started" in second.notes[-1][1]
    check_invariants(state)


def test_a_limit_that_is_not_given_stays() -> None:
    world = World()
    serve(world.state, of(min_replicas=1, max_replicas=3))
    scale(world.state, min_replicas=2)
    assert (world.service.spec.min_replicas, world.service.spec.max_replicas) == (2, 3)
    scale(world.state, min_replicas=5)
    assert (world.service.spec.min_replicas, world.service.spec.max_replicas) == (5, 5)
    scale(world.state, max_replicas=4)
    assert (world.service.spec.min_replicas, world.service.spec.max_replicas) == (4, 4)
    notes = len(world.service.notes)
    scale(world.state, max_replicas=4)
    assert len(world.service.notes) == notes
    assert isinstance(tried(World().state, ScaleService(tenant_id="default", name="chat")), UnknownService)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["load", "update", "restart", "scale", "kill", "bad", "step"]), st.integers(0, 5)
        ),
        max_size=25,
    )
)
def test_the_number_of_replicas_stays_within_its_bounds_whatever_happens(moves) -> None:
    world = World()
    serve(world.state, of(min_replicas=1, max_replicas=3, calm_ms=2_000, start_ms=4_000, unready_ms=2_000))
    for move, number in moves:
        if move == "load":
            world.load = 7 * number
        elif move == "update":
            serve(world.state, replace(of(f"v{number}"), min_replicas=1, max_replicas=3, start_ms=4_000))
        elif move == "restart":
            serve(world.state, of(), restarts=True)
        elif move == "scale":
            scale(world.state, min_replicas=number, max_replicas=number + 1)
        elif move == "kill" and world.service.replicas:
            tried(world.state, CancelTasks(task_ids=(world.service.replicas[0].task_id,)))
        elif move == "bad":
            world.bad = {world.service.generation} if number % 2 else set()
        world.step(1_000 * (1 + number))
        staying = [each for each in world.service.replicas if not each.leaving_at]
        assert len({each.task_id for each in staying}) == len(staying)
        assert len(staying) <= max(world.service.wanted, 0) + 1 or any(
            each.generation != world.service.active[1] for each in staying
        )
        assert digest(world.state) == digest(type(world.state).from_parts(world.state.fork().parts()))
    world.bad, world.load = set(), 0
    world.steps(330)
    world.step(400_000)
    world.steps(40)
    assert world.ready == world.service.wanted, world.service
    assert set(world.generations()) <= {world.service.active[1]}


def test_one_step_starts_replicas_of_a_bounded_number_of_services() -> None:
    """The others wait for the next step: one command stays small."""
    state = cluster(node("n1"))
    for number in range(MAX_STARTS + 1):
        do(state, SetService(tenant_id="default", name=f"s{number:03}", spec=of(str(number), min_replicas=1)))
    do(state, StepServices())
    assert len(state.tasks) == MAX_STARTS
    do(state, StepServices())
    assert len(state.tasks) == MAX_STARTS + 1
