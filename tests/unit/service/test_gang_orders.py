"""What agents hear of gangs and arrays."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.commands import CancelTasks, SubmitTasks
from dgpu.core.model.task import TaskStatus
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import HOST_FILE
from unit.service.cluster import Bench, register, reports, spec, starts, stops, told


def gang(bench: Bench, nodes: int = 2) -> list[pb.Start]:
    """A task that runs on so many nodes; its orders to start, by rank."""
    for number in range(1, nodes + 1):
        bench.say(number, register(f"n{number}"))
    wanted = spec()
    wanted = replace(wanted, shape=replace(wanted.shape, nodes=nodes))
    bench.ask(SubmitTasks(entries=((1, wanted),)))
    orders = [start for message in told(bench.settle()) for start in message.orders.starts]
    for start in orders:
        bench.say(start.rank + 1, reports(started=(start.lease_id,)))
    return orders


def failed(lease: int, code: int = 1) -> pb.FromAgent:
    ended = pb.Finished(lease_id=lease, outcome="exited", exit_code=code)
    return pb.FromAgent(reports=pb.Reports(seq=9, finished=[ended]))


def stopped(lease: int) -> pb.FromAgent:
    return pb.FromAgent(reports=pb.Reports(seq=9, finished=[pb.Finished(lease_id=lease, outcome="stopped")]))


def test_each_rank_hears_its_place_in_the_world() -> None:
    first, second = gang(Bench())
    port = first.env["MASTER_PORT"]
    assert dict(first.env) == {
        "MASTER_ADDR": "n1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "RANK": "0",
        "NODE_RANK": "0",
        "LOCAL_RANK": "0",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "n1",
        "PET_MASTER_PORT": port,
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": f"n1:{port}",
        "PET_RDZV_ID": "task-1.1",
    }
    assert dict(second.env) == {**dict(first.env), "RANK": "1", "NODE_RANK": "1", "PET_NODE_RANK": "1"}
    assert (first.rank, second.rank, first.attempt, second.attempt) == (0, 1, 1, 1)
    assert 20_000 <= int(first.env["MASTER_PORT"]) < 32_000


def test_each_rank_gets_the_list_of_all_nodes() -> None:
    """For mpirun and deepspeed, which start the processes of all nodes themselves."""
    for start in gang(Bench(), nodes=3):
        assert dict(start.secret_files) == {HOST_FILE: b"n1 slots=1\nn2 slots=1\nn3 slots=1\n"}


def test_an_array_tells_each_task_its_index() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(SubmitTasks(entries=((2, replace(spec(), array=((4, 9, 5),))),)))
    orders = [start for message in told(bench.settle()) for start in message.orders.starts]
    assert [start.env["DGPU_ARRAY_INDEX"] for start in orders] == ["4", "9"]


def test_a_plain_task_hears_of_neither() -> None:
    bench = Bench()
    bench.say(1, register())
    bench.ask(SubmitTasks(entries=((1, spec()),)))
    (start,) = [start for message in told(bench.settle()) for start in message.orders.starts]
    assert not start.env
    assert not start.secret_files
    assert start.rank == 0


def test_when_one_rank_fails_the_others_are_told_to_stop() -> None:
    bench = Bench()
    first, second = gang(bench)
    outputs = bench.say(2, failed(second.lease_id))
    assert [stop.lease_id for message in told(outputs, 1) for stop in message.orders.stops] == [
        first.lease_id
    ]
    assert not stops([each for each in outputs if getattr(each, "connection_id", 0) == 2])
    bench.say(1, stopped(first.lease_id))
    assert bench.state.tasks[1].status is TaskStatus.FAILED


def test_cancelling_tells_all_ranks() -> None:
    bench = Bench()
    orders = gang(bench, nodes=3)
    bench.ask(CancelTasks(task_ids=(1,)))
    assert sorted(stops(bench.settle())) == [start.lease_id for start in orders]


def test_a_rank_that_is_over_is_neither_kept_nor_started_again_when_its_node_returns() -> None:
    bench = Bench()
    _, second = gang(bench)
    bench.say(2, reports(finished=(second.lease_id,)))
    assert bench.state.tasks[1].status is TaskStatus.RUNNING
    bench.leave(2)
    outputs = bench.say(3, register("n2", held=(second.lease_id,)))
    (welcome,) = [message.welcome for message in told(outputs) if message.HasField("welcome")]
    assert list(welcome.keep) == []
    assert not starts(outputs)


def test_a_node_that_was_away_hears_that_its_rank_is_to_stop() -> None:
    bench = Bench()
    first, second = gang(bench)
    bench.leave(1)
    bench.say(2, failed(second.lease_id))
    outputs = bench.say(3, register("n1", held=(first.lease_id,)))
    assert stops(outputs) == [first.lease_id]
