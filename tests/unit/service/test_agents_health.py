"""What the scheduler makes of a card that an agent calls ill: over the agents' protocol, without I/O."""

from __future__ import annotations

from dgpu.core.commands import DrainNode, ObserveGpu, ResumeNode
from dgpu.core.model.health import Health
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import (
    Bench,
    heartbeat,
    register,
    starts,
    stops,
    submit,
    told,
)


def test_a_fault_takes_a_gpu_out_and_a_check_brings_it_back() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    bench.say(1, heartbeat(GPU_n1_0={"fault": "fell off the bus", "fault_cause": "lost"}))
    bench.ask(submit())
    assert starts(bench.settle()) == []
    bench.now += 2_000
    assert starts(bench.say(1, heartbeat(GPU_n1_0={}))) == []
    outputs = bench.wait(31_000, beating={1: 1})
    (check,) = [check for message in told(outputs) for check in message.orders.checks]
    answer = pb.Checked(uuid=check.uuid, number=check.number, ok=True, evidence="well")
    bench.say(1, pb.FromAgent(checked=answer))
    assert bench.state.gpus[GpuId("GPU-n1-0")].health is Health.PAROLE
    assert starts(bench.wait(601_000, beating={1: 1})) == [1]


def test_a_sample_from_before_the_fault_does_not_make_a_card_look_well_for_longer_than_a_beat() -> None:
    """The list of cards told of the fault first; the heartbeat behind it carries what was measured before."""
    bench = Bench()
    bench.say(1, register(gpus=1))
    sick = {"fault": "fell off the bus", "fault_cause": "lost"}
    bench.say(1, heartbeat(GPU_n1_0=sick))
    bench.now += 2_000
    bench.say(1, heartbeat(GPU_n1_0={}))
    assert bench.state.health[GpuId("GPU-n1-0")].clear_since
    bench.now += 200
    bench.say(1, heartbeat(GPU_n1_0=sick))
    assert not bench.state.health[GpuId("GPU-n1-0")].clear_since


def test_a_card_whose_fault_comes_and_goes_with_every_beat_does_not_fill_the_journal() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    records = len(bench.appended)
    for beat in range(100):
        bench.now += 100
        bench.say(1, heartbeat(GPU_n1_0={"fault": "" if beat % 2 else "loose", "fault_cause": "lost"}))
    assert len(bench.appended) - records <= 2 * 100 * 100 // 1_000


def test_a_task_on_a_gpu_that_falls_ill_is_stopped_with_the_reason() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    bench.ask(submit())
    assert starts(bench.settle()) == [1]
    outputs = bench.say(1, heartbeat(GPU_n1_0={"fault": "Xid 79", "fault_cause": "xid"}))
    ordered = [stop for message in told(outputs) for stop in message.orders.stops]
    assert [(stop.lease_id, stop.reason) for stop in ordered] == [(1, "gpu_fault")]


def test_who_reconnects_hears_again_what_to_stop_and_what_to_check() -> None:
    bench = Bench()
    bench.say(1, register(gpus=2))
    bench.ask(submit())
    bench.settle()
    sick = {"fault": "Xid 79", "fault_cause": "xid"}
    bench.say(1, heartbeat(GPU_n1_0=sick, GPU_n1_1=sick))
    bench.wait(31_000, beating={1: 1})
    assert bench.state.gpus[GpuId("GPU-n1-1")].health is Health.PROBING, "the other one is still in use"
    outputs = bench.say(2, register(gpus=2, held=(1,)))
    assert stops(outputs) == [1]
    assert [check.uuid for message in told(outputs) for check in message.orders.checks] == ["GPU-n1-1"]


def test_an_answer_about_a_card_of_another_node_changes_nothing() -> None:
    bench = Bench()
    bench.say(1, register(gpus=1))
    bench.say(2, register("n2", gpus=1))
    bench.ask(ObserveGpu(gpu_id=GpuId("GPU-n1-0"), foreign_mb=0, fault="Xid 79", fault_cause="xid"))
    bench.wait(31_000, beating={1: 1, 2: 1})
    assert bench.state.gpus[GpuId("GPU-n1-0")].health is Health.PROBING
    bench.say(2, pb.FromAgent(checked=pb.Checked(uuid="GPU-n1-0", number=1, ok=True, evidence="well")))
    assert bench.state.gpus[GpuId("GPU-n1-0")].health is Health.PROBING


# the node as a whole


def unfit(reason: str) -> pb.FromAgent:
    return pb.FromAgent(heartbeat=pb.Heartbeat(seq=1, unfit=reason))


def test_a_node_without_room_on_its_disk_gets_no_tasks_until_it_has_some() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.say(1, unfit("the disk of /var is full"))
    assert bench.state.nodes[NodeId("n1")].drain_reason == "the node says: the disk of /var is full"
    records = len(bench.appended)
    bench.say(1, unfit("the disk of /var is full"))
    assert len(bench.appended) == records
    bench.ask(submit())
    assert starts(bench.settle()) == []
    assert starts(bench.say(1, unfit(""))) == [1]
    assert not bench.state.nodes[NodeId("n1")].draining


def test_a_node_that_a_person_drained_stays_so_whatever_it_says_itself() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(DrainNode(node_id=NodeId("n1"), reason="new fans"))
    for said in ("the disk of /var is full", ""):
        bench.say(1, unfit(said))
        assert bench.state.nodes[NodeId("n1")].drain_reason == "new fans"
    bench.ask(ResumeNode(node_id=NodeId("n1")))
    bench.say(1, unfit("full"))
    bench.ask(DrainNode(node_id=NodeId("n1"), reason="new disk"))
    bench.say(1, unfit(""))
    assert bench.state.nodes[NodeId("n1")].drain_reason == "new disk"
