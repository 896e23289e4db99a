from __future__ import annotations

from dgpu.core.commands import CancelTasks, DrainNode
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.node import NodeStatus
from dgpu.core.model.task import Restart, TaskStatus
from dgpu.service.machine import agents
from dgpu.service.machine.inputs import AgentSaid, TimePassed
from dgpu.service.machine.outputs import Contradicted, HangUp, Tell
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import (
    Bench,
    heartbeat,
    hung_up,
    register,
    reports,
    starts,
    stops,
    submit,
    told,
    without_remarks,
)

N1 = NodeId("n1")


def running(bench: Bench, connection: int = 1) -> int:
    """A task that runs on n1. Returns its lease."""
    bench.say(connection, register())
    bench.ask(submit())
    (lease,) = starts(bench.settle())
    bench.say(connection, reports(started=(lease,)))
    return lease


def test_a_node_is_welcomed_after_its_registration_is_durable() -> None:
    bench = Bench()
    assert bench.put(AgentSaid(connection_id=1, message=register())) == []
    bench.decide()
    (welcome,) = told(bench.commit())
    assert welcome.welcome == pb.Welcome(
        epoch=1, task_lease_ms=60_000, lease_action="freeze", heartbeat_timeout_ms=15_000
    )
    assert bench.scheduler.contact(N1).connected


def test_a_task_that_waited_for_a_node_is_ordered_right_behind_the_welcome() -> None:
    bench = Bench()
    bench.run(submit(detail=b'{"name":"a"}'))
    outputs = bench.say(1, register())
    assert [message.WhichOneof("body") for message in told(outputs)] == ["welcome", "orders"]
    (start,) = told(outputs)[1].orders.starts
    assert (start.lease_id, start.task_id, start.attempt, start.detail) == (1, 1, 1, b'{"name":"a"}')
    assert list(start.gpu_uuids) == ["GPU-n1-0"]
    assert start.timeout_ms == 3_600_000


def test_a_start_leaves_only_after_the_placement_is_durable() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit())
    assert told(bench.decide()) == []
    assert starts(bench.commit()) == [1]


def test_the_orders_of_one_group_travel_in_one_message() -> None:
    bench = Bench()
    bench.say(1, register(gpus=8))
    bench.ask(submit(8))
    assert [len(message.orders.starts) for message in told(bench.settle())] == [8]


def test_allocations_are_never_sent_to_an_agent() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit(allocation=True))
    assert starts(bench.settle()) == []
    assert starts(bench.say(2, register())) == []
    assert bench.state.tasks[TaskId(1)].status is TaskStatus.RUNNING


def test_reports_are_acknowledged_after_their_commit() -> None:
    bench = Bench()
    lease = running(bench)
    assert bench.put(AgentSaid(connection_id=1, message=reports(7, finished=(lease,)))) == []
    bench.decide()
    assert bench.state.tasks[TaskId(1)].status is TaskStatus.SUCCESS
    (ack,) = told(bench.commit())
    assert ack.reports_ack.seq == 7


def test_a_stale_report_is_acknowledged_too() -> None:
    """Else the agent would keep and send it for ever."""
    bench = Bench()
    lease = running(bench)
    bench.say(1, reports(2, finished=(lease,)))
    assert [m.reports_ack.seq for m in told(bench.say(1, reports(3, finished=(lease, 99))))] == [3]


def test_a_repeated_report_is_not_acknowledged_before_the_first_is_durable() -> None:
    """A crash now would lose the end, and the agent would have forgotten it."""
    bench = Bench()
    lease = running(bench)
    bench.put(AgentSaid(connection_id=1, message=reports(2, finished=(lease,))))
    bench.decide()
    bench.put(AgentSaid(connection_id=1, message=reports(3, finished=(lease,))))
    assert told(bench.decide()) == []
    assert [m.reports_ack.seq for m in told(bench.commit() + bench.settle())] == [2, 3]


def test_one_acknowledgement_holds_for_all_reports_of_a_group() -> None:
    bench = Bench()
    bench.say(1, register())
    for seq in (1, 2, 3):
        bench.put(AgentSaid(connection_id=1, message=reports(seq)))
    assert [m.reports_ack.seq for m in told(bench.settle())] == [3]


def test_a_node_cannot_report_on_the_lease_of_another() -> None:
    bench = Bench()
    lease = running(bench)
    bench.say(2, register("n2"))
    assert [m.reports_ack.seq for m in told(bench.say(2, reports(1, finished=(lease,))))] == [1]
    assert bench.state.tasks[TaskId(1)].status is TaskStatus.RUNNING


def test_an_outcome_of_a_later_version_ends_the_attempt_as_the_nodes_fault() -> None:
    bench = Bench()
    lease = running(bench)
    report = pb.Finished(lease_id=lease, outcome="evaporated\x1b[31m")
    bench.say(1, pb.FromAgent(reports=pb.Reports(seq=1, finished=[report])))
    task = bench.state.tasks[TaskId(1)]
    assert (task.status, task.retries) == (TaskStatus.PENDING, 1)
    assert "unknown outcome: evaporated" in task.error
    assert "\x1b" not in task.error


def test_a_node_that_comes_back_keeps_what_still_stands() -> None:
    bench = Bench()
    lease = running(bench)
    bench.leave(1)
    outputs = bench.say(2, register(held=(lease, 99)))
    (welcome,) = told(outputs)
    assert list(welcome.welcome.keep) == [lease]


def test_a_start_that_never_arrived_is_ordered_again_when_the_node_comes_back() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit())
    (lease,) = starts(bench.settle())
    bench.leave(1)
    assert starts(bench.say(2, register())) == [lease]


def test_a_start_that_arrived_is_not_ordered_again() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit())
    (lease,) = starts(bench.settle())
    bench.leave(1)
    assert starts(bench.say(2, register(held=(lease,)))) == []


def test_a_task_placed_while_its_node_is_away_is_ordered_once_when_it_is_back() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.leave(1)
    bench.run(submit())
    assert starts(bench.say(2, register())) == [1]
    assert starts(bench.wait(3_000)) == []


def test_cancelling_a_running_task_stops_it_and_again_after_a_reconnect() -> None:
    bench = Bench()
    lease = running(bench)
    bench.ask(CancelTasks(task_ids=(TaskId(1),)))
    assert stops(bench.settle()) == [lease]
    bench.leave(1)
    assert stops(bench.say(2, register(held=(lease,)))) == [lease]
    bench.say(2, reports(finished=(lease,)))
    assert bench.state.tasks[TaskId(1)].status is TaskStatus.CANCELLED


def test_a_task_cancelled_before_its_start_arrived_is_started_and_stopped() -> None:
    """The agent has to answer for the lease either way."""
    bench = Bench()
    bench.say(1, register())
    bench.leave(1)
    bench.run(submit())
    bench.run(CancelTasks(task_ids=(TaskId(1),)))
    outputs = bench.say(2, register())
    assert (starts(outputs), stops(outputs)) == ([1], [1])


def test_a_newer_connection_of_the_same_machine_replaces_the_older() -> None:
    bench = Bench()
    bench.say(1, register())
    outputs = bench.say(2, register())
    assert hung_up(outputs) == [(1, "replaced by a newer connection")]
    assert [o.connection_id for o in outputs if isinstance(o, Tell)] == [2]
    assert hung_up(bench.say(1, heartbeat())) == [(1, "the first message must be Register")]


def test_another_live_machine_of_the_same_name_is_refused() -> None:
    bench = Bench()
    bench.say(1, register())
    outputs = bench.say(2, register(boot="boot-2"))
    reason = "another machine is connected as n1; give this one its own id"
    assert told(outputs, 2) == [pb.FromScheduler(refused=pb.Refused(reason=reason))]
    assert hung_up(outputs) == [(2, reason)]
    assert bench.scheduler.contact(N1).connected


def test_a_machine_that_was_restarted_takes_its_name_again() -> None:
    bench = Bench()
    running(bench)
    bench.leave(1)
    outputs = bench.say(2, register(boot="boot-2"))
    assert starts(outputs) == [2]  # what ran before the restart is gone: a new lease, at once
    assert bench.state.tasks[TaskId(1)].attempt == 2


def test_a_gpu_of_another_node_is_refused_with_the_reason() -> None:
    bench = Bench()
    bench.say(1, register())
    stolen = register("n2")
    stolen.register.gpus[0].uuid = "GPU-n1-0"
    outputs = bench.say(2, stolen)
    assert "belongs to node n1" in told(outputs)[0].refused.reason
    assert [o.connection_id for o in outputs if isinstance(o, HangUp)] == [2]


def test_a_node_that_has_seen_a_newer_scheduler_is_refused() -> None:
    bench = Bench()
    outputs = bench.say(1, register(epoch=5))
    (refused,) = told(outputs)
    assert "at epoch 1, node n1 has obeyed epoch 5" in refused.refused.reason
    assert "--accept-lost-tail" in refused.refused.reason
    (contradicted,) = [each for each in outputs if isinstance(each, Contradicted)]
    assert (contradicted.node_id, contradicted.epoch) == ("n1", 5)


def test_what_breaks_the_protocol_ends_that_connection_alone() -> None:
    bench = Bench()
    bench.say(1, register())
    bad_name = register("../../etc")
    for message in (heartbeat(), pb.FromAgent(), bad_name, reports()):
        (hang_up,) = bench.say(9, message)
        assert isinstance(hang_up, HangUp)
        assert hang_up.fault
    assert bench.scheduler.contact(N1).connected
    assert set(bench.state.nodes) == {N1}


def test_reports_before_the_welcome_break_the_protocol() -> None:
    bench = Bench()
    bench.put(AgentSaid(connection_id=1, message=register()))
    (hang_up,) = bench.put(AgentSaid(connection_id=1, message=reports()))
    assert isinstance(hang_up, HangUp)
    assert told(bench.settle()) == []


def test_an_agent_that_ignores_acknowledgements_is_cut() -> None:
    bench = Bench()
    bench.say(1, register())
    outputs = []
    for seq in range(agents._MAX_UNACKED + 1):
        outputs += bench.put(AgentSaid(connection_id=1, message=reports(seq)))
    assert len(hung_up(without_remarks(outputs))) == 1


def test_heartbeats_are_answered_at_once_and_feed_the_telemetry() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit())
    bench.decide()
    message = heartbeat(4, GPU_n1_0={"utilization_percent": 80, "memory_used_mb": 900, "temperature_c": 61})
    (ack,) = told(bench.put(AgentSaid(connection_id=1, message=message)))
    assert ack.heartbeat_ack.seq == 4
    sample = bench.scheduler.telemetry[GpuId("GPU-n1-0")]
    assert (sample.utilization_percent, sample.memory_used_mb, sample.temperature_c) == (80, 900, 61)


def test_what_a_card_does_not_tell_is_known_as_such() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    bench.say(1, heartbeat(GPU_n1_0={"utilization_percent": 80, "untold": ["power", "a later word"]}))
    sample = bench.scheduler.telemetry[GpuId("GPU-n1-0")]
    assert (sample.utilization_percent, sample.power_w, sample.temperature_c) == (80, None, 0)


def test_samples_of_unknown_or_foreign_gpus_are_ignored() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.say(2, register("n2"))
    bench.say(2, heartbeat(GPU_n1_0={"fault": "x"}, GPU_other={"fault": "x"}))
    assert bench.scheduler.telemetry == {}
    assert bench.state.gpus[GpuId("GPU-n1-0")].fault == ""


def test_foreign_memory_is_journaled_by_steps_and_not_more_often_than_needed() -> None:
    bench = Bench()
    bench.say(1, register())
    gpu_id = GpuId("GPU-n1-0")
    records = len(bench.appended)
    for foreign_mb, after_ms, expected_mb in (
        (300, 0, 512),
        (310, 6_000, 512),  # the same step
        (700, 1_000, 768),  # the next step, long enough after the last one
        (900, 1_000, 768),  # too soon
        (900, 5_000, 1_024),
        (760, 6_000, 1_024),  # just below the edge: stays
        (600, 6_000, 768),
    ):
        bench.now += after_ms
        bench.say(1, heartbeat(GPU_n1_0={"memory_foreign_mb": foreign_mb}))
        assert bench.state.gpus[gpu_id].foreign_mb == expected_mb
    assert len(bench.appended) - records == 4


def test_a_changed_inventory_reaches_the_state() -> None:
    bench = Bench()
    bench.say(1, register(gpus=2))
    bench.say(1, pb.FromAgent(inventory=pb.Inventory(gpus=register(gpus=1).register.gpus)))
    assert len(bench.state.gpus) == 1


def test_fifteen_silent_seconds_make_a_node_lost_and_end_its_connection() -> None:
    bench = Bench()
    bench.say(1, register())
    assert hung_up(bench.wait(14_000)) == []
    assert hung_up(bench.wait(1_000)) == [(1, "no heartbeat for 15 s")]
    assert bench.state.nodes[N1].status is NodeStatus.OFFLINE


def test_a_node_that_beats_is_never_lost() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.wait(120_000, beating={1: 1})
    assert bench.state.nodes[N1].status is NodeStatus.READY


def test_a_lost_nodes_tasks_wait_for_the_lease_and_a_margin_after_the_last_word_to_it() -> None:
    bench = Bench()
    bench.say(2, register("n2", gpus=0))
    lease = running(bench)
    bench.say(1, heartbeat())
    bench.wait(64_000, beating={2: 1})
    assert bench.state.tasks[TaskId(1)].lease_id == lease
    bench.wait(1_000, beating={2: 1})
    task = bench.state.tasks[TaskId(1)]
    assert (task.status, task.reason, task.retries) == (TaskStatus.PENDING, "node_lost", 0)


def test_a_service_is_replaced_as_soon_as_its_node_is_lost() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit(restart=Restart.ALWAYS))
    (lease,) = starts(bench.settle())
    bench.say(1, reports(started=(lease,)))
    bench.say(2, register("n2"))
    bench.run(DrainNode(node_id=N1))
    assert starts(bench.wait(15_000, beating={2: 1})) == [lease + 1]
    (welcome,) = told(bench.say(3, register(held=(lease,))), 3)
    assert list(welcome.welcome.keep) == []  # the old one is stopped


def test_with_lease_action_never_time_alone_releases_nothing() -> None:
    bench = Bench(lease_action="never")
    lease = running(bench)
    bench.wait(3_600_000)
    assert bench.state.nodes[N1].status is NodeStatus.OFFLINE
    assert bench.state.leases[LeaseId(lease)].node_id == N1


def test_a_node_back_before_its_lease_is_over_goes_on_with_its_task() -> None:
    bench = Bench()
    lease = running(bench)
    bench.wait(50_000)
    (welcome,) = told(bench.say(2, register(held=(lease,))))
    assert list(welcome.welcome.keep) == [lease]
    bench.wait(60_000, beating={2: 1})
    assert bench.state.tasks[TaskId(1)].lease_id == lease


def test_a_node_back_after_its_lease_was_given_away_may_keep_nothing() -> None:
    bench = Bench()
    lease = running(bench)
    bench.wait(70_000)
    outputs = bench.say(2, register(held=(lease,)))
    assert list(told(outputs)[0].welcome.keep) == []
    assert starts(outputs) == [lease + 1]


def test_a_restarted_scheduler_waits_for_its_agents() -> None:
    """It has heard of nobody; that is its own doing."""
    bench = Bench()
    lease = running(bench)
    again = Bench(bench.state, last_index=len(bench.appended))
    again.wait(14_000)
    assert again.state.nodes[N1].status is NodeStatus.UNCONFIRMED
    again.wait(50_000)
    assert again.state.nodes[N1].status is NodeStatus.OFFLINE
    assert again.state.tasks[TaskId(1)].lease_id == lease
    again.wait(1_000)
    assert again.state.tasks[TaskId(1)].reason == "node_lost"


def test_a_scheduler_that_was_stopped_for_a_while_blames_nobody() -> None:
    """After SIGSTOP the heartbeats lie unread in the sockets."""
    bench = Bench()
    bench.say(1, register())
    bench.now += 30_000
    bench.wait(1_000)
    assert bench.state.nodes[N1].status is NodeStatus.READY


def test_messages_to_a_connection_that_was_lost_do_not_bring_the_node_back() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.wait(15_000)
    assert [type(o) for o in bench.say(1, heartbeat())] == [HangUp]
    assert bench.state.nodes[N1].status is NodeStatus.OFFLINE


def test_a_service_survives_a_restart_of_the_scheduler_that_its_agent_notices_late() -> None:
    """After a long outage agents look for a scheduler every 30 s; meanwhile a healthy service must not be replaced."""
    bench = Bench()
    bench.say(1, register())
    bench.ask(submit(restart=Restart.ALWAYS))
    (lease,) = starts(bench.settle())
    bench.say(1, reports(started=(lease,)))
    again = Bench(bench.state, last_index=len(bench.appended))
    again.wait(40_000)
    outputs = again.say(2, register(held=(lease,)))
    assert list(told(outputs)[0].welcome.keep) == [lease]
    assert starts(outputs) == []


def test_a_node_whose_registration_waits_for_the_disk_is_not_lost_for_that() -> None:
    bench = Bench()
    bench.wait(61_000)
    bench.ask(submit())
    bench.decide()
    bench.put(AgentSaid(connection_id=1, message=register()))
    bench.now += 1_000
    bench.put(TimePassed())
    bench.commit()
    bench.settle()
    bench.wait(2_000)
    assert bench.state.nodes[N1].status is NodeStatus.READY
