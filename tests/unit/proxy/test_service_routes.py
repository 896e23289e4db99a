"""Replicas of two generations, in a real state of the core."""

from __future__ import annotations

from msgspec.structs import replace

from building import cluster, do, finished, node, run_pass, spec, tried
from dgpu.core.commands import ReportStarted, SetService, StepServices
from dgpu.core.model.service import STALLED, ServiceSpec
from dgpu.core.model.task import Outcome, Restart
from dgpu.core.rules.replicas import MAX_FAILURES, Reading
from dgpu.core.state import ClusterState
from dgpu.service.proxy.routes import routes_of
from dgpu.service.services.watch import _routes

KEY = "default/chat"
OLD = ServiceSpec(task=replace(spec(), restart=Restart.ALWAYS), port=8000, health="/old")
NEW = replace(OLD, port=9000, health="/new", start_ms=2_000)


def step(state: ClusterState, seconds: int = 1) -> None:
    """Replicas of the first generation are ready."""
    readings = {each.task_id: Reading(each.generation == 1) for each in state.services[KEY].replicas}
    do(state, StepServices(readings=readings, load={}), at=state.last_at + seconds * 1_000)
    for lease in [each for each in state.leases.values() if state.tasks[each.task_id].cancelling]:
        do(state, finished(lease.id, outcome=Outcome.STOPPED))
    run_pass(state)
    for lease in [each for each in state.leases.values() if not each.started]:
        do(state, ReportStarted(lease_id=lease.id))


def test_each_replica_is_reached_and_checked_as_its_own_generation_says() -> None:
    """Else an update of the port or of the check would make all old replicas unreachable at once."""
    state = cluster(node("n1", gpus=4))
    tried(state, SetService(tenant_id="default", name="chat", spec=OLD))
    step(state)
    step(state)
    tried(state, SetService(tenant_id="default", name="chat", spec=NEW))
    step(state)
    due = [(each.route.port, each.spec.health) for each in _routes(state) or ()]
    assert due == [(8000, "/old"), (9000, "/new")]
    assert [route.port for route in routes_of(state, state.services[KEY])] == [8000]


def test_the_generation_that_serves_after_a_stopped_roll_out_has_its_own_port() -> None:
    state = cluster(node("n1", gpus=4))
    tried(state, SetService(tenant_id="default", name="chat", spec=OLD))
    step(state)
    step(state)
    tried(state, SetService(tenant_id="default", name="chat", spec=NEW))
    for _ in range(4 * MAX_FAILURES):
        step(state, seconds=30)
    service = state.services[KEY]
    assert service.status == STALLED
    assert [route.port for route in routes_of(state, service)] == [8000]
