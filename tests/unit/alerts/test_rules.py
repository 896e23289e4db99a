"""What each rule finds worth an alert, read off a real state."""

from __future__ import annotations

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.commands import CancelTasks, DrainNode, LoseNode, RegisterNode, SubmitTasks
from dgpu.core.decide.table import decide
from dgpu.core.events import CallsFailed, TaskFinished, WorkerChanged
from dgpu.core.model.health import GpuHealth, Health
from dgpu.core.model.ids import GpuId, NodeId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.task import Pool, Shape, TaskSpec, TaskStatus
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.alerts.readings import EndedTasks, read_state
from dgpu.service.alerts.rules import RULE_NAMES, Readings, Rule, RuleSet, Use, findings
from dgpu.service.alerts.worker_rules import TroubledWorkers
from dgpu.service.machine.agent_words import GpuSample, reason_of_node
from dgpu.service.machine.outputs import CommittedGroup

NOW = 10_000_000


def cluster(*names, gpus=2):
    state = ClusterState()
    for name in names:
        cards = tuple(
            Gpu(id=GpuId(f"{name}-{i}"), node_id=NodeId(name), index=i, model="V100", memory_mb=32_768)
            for i in range(gpus)
        )
        do(state, RegisterNode(node_id=NodeId(name), boot_id="b", cpus_milli=1, ram_mb=1, gpus=cards))
    return state


def do(state, command, at=1_000):
    result = decide(state, msgspec.structs.replace(command, at=at))
    assert not isinstance(result, Rejection), result
    for event in result:
        apply(state, event)


def look(state, telemetry=None, **more):
    readings = read_state(state, telemetry or {}, RuleSet(), NOW)._replace(**more)
    return {(each.rule, each.subject): each for each in findings(readings, RuleSet())}


def test_a_healthy_cluster_raises_nothing():
    assert look(cluster("n1", "n2")) == {}


def test_a_node_that_says_it_is_unfit_is_found_and_one_that_a_person_drains_is_not():
    state = cluster("n1", "n2")
    do(state, DrainNode(node_id=NodeId("n1"), reason=reason_of_node("its keeper (pid 7) does not answer")))
    do(state, DrainNode(node_id=NodeId("n2"), reason="new fan"))
    (finding,) = look(state).values()
    assert (finding.rule, finding.subject) == ("node_unfit", "n1")
    assert "its keeper (pid 7) does not answer" in finding.summary
    do(state, LoseNode(node_id=NodeId("n1"), reason="silent"))
    assert [rule for rule, _ in look(state)] == ["agent_offline"]


def test_a_lost_node_is_found_by_its_name():
    state = cluster("n1", "n2")
    do(state, LoseNode(node_id=NodeId("n2"), reason="silent"))
    (finding,) = look(state).values()
    assert (finding.rule, finding.subject) == ("agent_offline", "n2")
    assert "offline since 1970" in finding.summary


def test_a_card_out_of_service_is_an_error_and_one_that_waits_for_a_person_is_unrecoverable():
    state = cluster("n1", gpus=4)
    for number, health in enumerate((Health.QUARANTINED, Health.PROBING, Health.OUT, Health.PAROLE)):
        gpu_id = GpuId(f"n1-{number}")
        state.health[gpu_id] = GpuHealth(
            gpu_id=gpu_id, node_id=NodeId("n1"), state=health, since=5, cause="xid", evidence="Xid 79"
        )
    found = look(state)
    assert set(found) == {("gpu_error", "n1-0"), ("gpu_error", "n1-1"), ("gpu_unrecoverable", "n1-2")}
    assert "dgpu gpus recover n1-2" in found["gpu_unrecoverable", "n1-2"].summary


def test_a_card_is_hot_only_by_a_fresh_reading_above_the_limit():
    samples = {
        GpuId("n1-0"): GpuSample(at=NOW, temperature_c=86),
        GpuId("n1-1"): GpuSample(at=NOW, temperature_c=85),
        GpuId("n2-0"): GpuSample(at=NOW - 120_000, temperature_c=99),
        GpuId("gone"): GpuSample(at=NOW, temperature_c=99),
        GpuId("n2-1"): GpuSample(at=NOW),  # has no sensor
    }
    found = look(cluster("n1", "n2"), samples)
    assert set(found) == {("gpu_temperature", "n1-0")}


def test_quota_is_found_above_nine_tenths_of_pools_and_tenants():
    uses = (Use("pool online", 901, 1_000), Use("pool batch", 900, 1_000), Use("tenant a", 0, 0))
    found = look(cluster("n1"), uses=uses)
    assert set(found) == {("quota_usage", "pool online")}


def test_with_borrowing_only_both_pools_together_have_a_limit():
    state = cluster("n1", gpus=4)
    state.quota = Quota(mode=QuotaMode.STRICT)
    assert [use.holder for use in read_state(state, {}, RuleSet(), NOW).uses] == ["pool online", "pool batch"]
    state.quota = Quota(mode=QuotaMode.BORROW)
    assert read_state(state, {}, RuleSet(), NOW).uses == (Use("pools together", 0, 4_000),)


def test_the_failure_rate_needs_enough_tasks_and_forgets_what_is_past_the_window():
    ended = EndedTasks(600_000)
    events = [
        TaskFinished(task_id=n, lease_id=n, status=status, finished_at=0, at=NOW)
        for n, status in enumerate(
            [TaskStatus.FAILED] * 15 + [TaskStatus.SUCCESS] * 5 + [TaskStatus.CANCELLED]
        )
    ]
    ended.on_group(CommittedGroup(index=1, events=tuple(events)))
    assert ended.totals(NOW) == (20, 15)
    assert ended.totals(NOW + 590_000) == (20, 15)
    assert ended.totals(NOW + 610_000) == (0, 0)
    state = cluster("n1")
    assert set(look(state, ended=20, failed=15)) == {("failure_rate", "cluster")}
    assert look(state, ended=19, failed=19) == {}
    assert look(state, ended=20, failed=10) == {}


def test_ended_tasks_are_counted_in_a_bounded_number_of_buckets():
    ended = EndedTasks(600_000)
    for at in range(0, 100_000_000, 5_000):
        event = TaskFinished(task_id=1, lease_id=1, status=TaskStatus.FAILED, finished_at=0, at=at)
        ended.on_group(CommittedGroup(index=1, events=(event,)))
    assert len(ended._buckets) <= 61


def test_the_task_that_waits_longest_is_named():
    state = cluster("n1", gpus=1)
    shape = Shape(tenant_id=TenantId("t"), pool=Pool.BATCH, priority=50, gpus=1)
    do(state, SubmitTasks(entries=((2, TaskSpec(shape=shape, detail=b"{}")),)), at=2_000)
    found = look(state)
    assert "dgpu why task-1" in found["queue_wait", "pool batch"].summary
    assert findings(read_state(state, {}, RuleSet(), 2_000 + 3_600_000), RuleSet()) == []


def test_a_disk_is_nearly_full_when_little_is_left_in_parts_and_in_bytes():
    state, gib = cluster("n1"), 1 << 30
    assert set(look(state, disk_free_bytes=5 * gib, disk_total_bytes=100 * gib)) == {
        ("disk_full", "scheduler")
    }
    assert look(state, disk_free_bytes=500 * gib, disk_total_bytes=10_000 * gib) == {}  # 5 %, but a lot
    assert look(state, disk_free_bytes=15 * gib, disk_total_bytes=20 * gib) == {}  # small, but empty
    assert "submits are refused" in look(state, journal_full=True)["disk_full", "scheduler"].summary


def test_a_rule_that_is_switched_off_finds_nothing():
    off = RuleSet(
        **{name: msgspec.structs.replace(getattr(RuleSet(), name), enabled=False) for name in RULE_NAMES}
    )
    state = cluster("n1")
    do(state, LoseNode(node_id=NodeId("n1"), reason="silent"))
    full = Readings(at=NOW, ended=100, failed=100, journal_full=True, uses=(Use("pool online", 2, 1),))
    assert findings(full, off) == []
    assert read_state(state, {}, off, NOW) == Readings(at=NOW)
    assert isinstance(off.agent_offline, Rule)


def test_a_history_that_does_not_advance_is_found_long_before_tasks_are_refused():
    state = cluster("n1")
    shape = Shape(tenant_id=TenantId("t"), pool=Pool.BATCH, priority=50, gpus=1)
    state.settings = msgspec.structs.replace(state.settings, keep_finished=2, max_unsaved=10)
    do(state, SubmitTasks(entries=((4, TaskSpec(shape=shape, detail=b"{}")),)))
    do(state, CancelTasks())
    assert look(state) == {}
    do(state, SubmitTasks(entries=((2, TaskSpec(shape=shape, detail=b"{}")),)))
    do(state, CancelTasks())
    (finding,) = look(state).values()
    assert (finding.rule, finding.subject, finding.facts) == (
        "history_behind",
        "cluster",
        {"tasks": 4, "limit": 10},
    )


def test_a_journal_that_is_not_available_or_was_made_again_is_an_alert_at_once() -> None:
    state = cluster()
    assert ("journal_unavailable", "scheduler") not in look(state)
    refusing = look(state, journal_trouble="the files are gone")["journal_unavailable", "scheduler"]
    assert "New tasks are refused: the files are gone." in refusing.summary
    repaired = look(state, journal_repaired="the lock was deleted")["journal_unavailable", "scheduler"]
    assert "deleted or replaced while it ran: the lock was deleted" in repaired.summary
    assert RuleSet().journal_unavailable.for_ms == 0


def test_a_worker_without_heartbeat_and_calls_without_workers_are_told_to_their_tenant_for_a_while():
    state = cluster("n1")
    shape = Shape(tenant_id=TenantId("lab"), pool=Pool.BATCH, priority=50, gpus=1)
    do(state, SubmitTasks(entries=((4, TaskSpec(shape=shape, detail=b"{}")),)), at=NOW)
    troubled = TroubledWorkers(300_000)
    changed = WorkerChanged(task_id=1, lease_id=1, ready=True, down="no heartbeat for 30 s", at=NOW)
    well = WorkerChanged(task_id=2, lease_id=2, ready=True, at=NOW)
    failed = CallsFailed(task_ids=(3, 4), reason="no_worker", error="no module named job", at=NOW)
    troubled.on_group(CommittedGroup(index=1, events=(changed, well, failed, failed)))
    found = findings(read_state(state, {}, RuleSet(), NOW + 299_000, troubled), RuleSet())
    assert [(each.rule, each.subject, each.tenant, each.plain) for each in found] == [
        ("worker_down", "task-1", "lab", ""),
        ("worker_down", "tenant lab", "lab", ""),
    ]
    assert "no heartbeat for 30 s" in found[0].summary
    assert "4 calls failed" in found[1].summary
    assert "no module named job" in found[1].summary
    assert findings(read_state(state, {}, RuleSet(), NOW + 300_000, troubled), RuleSet()) == []
