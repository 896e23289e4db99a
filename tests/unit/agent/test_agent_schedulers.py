"""A node with several schedulers: all are dialled, one is kept."""

from __future__ import annotations

import pytest

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle_words import Ordered
from dgpu.agent.session import Session
from dgpu.agent.session_words import (
    Begin,
    Connected,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Note,
    Opened,
    Received,
    SaveEpoch,
    Send,
    Woke,
    Written,
)
from dgpu.wire.proto import agent_pb2 as pb
from unit.agent.test_agent_session import GPU, report, sent, session

REFUSED = pb.FromScheduler(refused=pb.Refused(reason="standby"))


def two(**facts) -> Session:
    machine = session(addresses=("m:1", "s:1"), **facts)
    assert machine.on_input(Begin(), 0) == [Dial(address="m:1"), Dial(address="s:1")]
    return machine


def welcome_of(address: str, epoch: int = 4, **facts) -> Received:
    message = pb.Welcome(epoch=epoch, task_lease_ms=60_000, lease_action="freeze", **facts)
    return Received(address=address, message=pb.FromScheduler(welcome=message))


def test_all_schedulers_are_dialled_at_once_and_the_first_welcome_is_kept() -> None:
    machine = two()
    for address in ("m:1", "s:1"):
        (message,) = sent(machine.on_input(Connected(address=address), 10))
        assert message.register.node_id == "n1"
    outputs = machine.on_input(welcome_of("s:1"), 20)
    assert outputs[0] == HangUp(address="m:1", reason="s:1 is the master")
    assert Opened(address="s:1", session_id="s1") in outputs
    assert machine.on_input(Disconnected(address="m:1", reason="hung up"), 21) == []
    assert machine.open
    machine.on_input(Written(address="s:1"), 30)
    machine.on_input(report(1), 40)
    (send,) = machine.on_input(Flush(), 40)
    assert isinstance(send, Send)
    assert send.address == "s:1"
    assert machine.wake_at_ms < 5_100, "only the heartbeat; the other address is left alone"


def test_a_second_welcome_is_not_obeyed() -> None:
    """Both registered before the first welcome came. Two schedulers that give orders would be one too many."""
    machine = two()
    machine.on_input(Connected(address="m:1"), 10)
    machine.on_input(Connected(address="s:1"), 10)
    machine.on_input(welcome_of("m:1", epoch=4), 20)
    assert machine.on_input(welcome_of("s:1", epoch=5), 21) == []
    orders = pb.FromScheduler(orders=pb.Orders(starts=[pb.Start(lease_id=1)]))
    assert machine.on_input(Received(address="s:1", message=orders), 22) == []
    assert machine.joined.epoch == 4


def test_a_stale_master_that_answers_first_is_refused_and_the_new_one_obeyed() -> None:
    """It was paused while the other one took over; this node has seen the new epoch."""
    machine = two(epoch=5)
    machine.on_input(Connected(address="m:1"), 10)
    machine.on_input(Connected(address="s:1"), 10)
    assert machine.on_input(welcome_of("m:1", epoch=4), 20)[-1] == HangUp(
        address="m:1", reason="epoch 4 is older than 5"
    )
    machine.on_input(Disconnected(address="m:1"), 20)
    machine.on_input(welcome_of("s:1", epoch=5), 30)
    assert machine.open
    assert machine.joined.epoch == 5


def test_each_address_has_its_own_pause() -> None:
    machine = two(jitter=1.0)
    dialled: dict[str, list[int]] = {"m:1": [], "s:1": []}
    now_ms = 0
    machine.on_input(Disconnected(address="m:1"), now_ms)
    while now_ms < 8_000:
        now_ms = machine.wake_at_ms
        for output in machine.on_input(Woke(), now_ms):
            if isinstance(output, Dial):
                dialled[output.address].append(now_ms)
                machine.on_input(Disconnected(address=output.address), now_ms)
            elif isinstance(output, HangUp):
                machine.on_input(Disconnected(address=output.address), now_ms)
    assert dialled["m:1"] == [1_000, 3_000, 7_000]
    assert dialled["s:1"] == [], "it has ten seconds to answer"


def test_a_standby_that_refuses_is_asked_again_until_it_takes_over() -> None:
    machine = two(jitter=0.0)
    machine.on_input(Disconnected(address="m:1", reason="refused"), 0)
    machine.on_input(Connected(address="s:1"), 0)
    outputs = machine.on_input(Received(address="s:1", message=REFUSED), 10)
    assert outputs == [
        Note(event="registration_refused", detail="s:1: standby"),
        HangUp(address="s:1", reason="standby"),
    ]
    machine.on_input(Disconnected(address="s:1"), 10)
    assert machine.on_input(Woke(), 510) == [Dial(address="m:1"), Dial(address="s:1")]


def test_of_several_schedulers_each_is_dialled_every_five_seconds_however_often_it_refused() -> None:
    """Only the master listens. After a takeover, the node must not wait for a pause that grew before it."""
    machine = two(jitter=1.0)
    for address in ("m:1", "s:1"):
        machine.on_input(Disconnected(address=address), 0)
    pauses_ms, now_ms = [], 0
    while now_ms < 60_000:
        pauses_ms.append(machine.wake_at_ms - now_ms)
        now_ms = machine.wake_at_ms
        for output in machine.on_input(Woke(), now_ms):
            assert isinstance(output, Dial)
            machine.on_input(Disconnected(address=output.address), now_ms)
    assert pauses_ms[:5] == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert max(pauses_ms) == 5_000


@pytest.mark.parametrize(("jitter", "pause_ms"), [(0.0, 100), (0.5, 550), (1.0, 1_000)])
def test_after_the_loss_of_the_master_all_are_dialled_soon_but_not_by_all_nodes_at_once(
    jitter, pause_ms
) -> None:
    machine = two(jitter=jitter)
    machine.on_input(Disconnected(address="m:1"), 0)  # a pause that does not count later
    machine.on_input(Connected(address="s:1"), 10)
    machine.on_input(welcome_of("s:1"), 20)
    machine.on_input(Disconnected(address="s:1", reason="broken"), 50_000)
    assert not machine.open
    assert machine.wake_at_ms == 50_000 + pause_ms
    assert machine.on_input(Woke(), machine.wake_at_ms) == [Dial(address="m:1"), Dial(address="s:1")]


def test_a_master_that_confirms_no_heartbeat_is_left_for_another_scheduler() -> None:
    """It is cut off from the engine and keeps the stream open with messages that renew nothing."""
    machine = two()
    machine.on_input(Connected(address="m:1"), 10)
    machine.on_input(welcome_of("m:1", heartbeat_timeout_ms=15_000), 20)
    machine.on_input(Disconnected(address="s:1"), 30)
    ended: list[HangUp] = []
    for now_ms in range(1_000, 40_000, 1_000):
        outputs = machine.on_input(Received(address="m:1", message=pb.FromScheduler()), now_ms)
        outputs += machine.on_input(Woke(), now_ms)
        ended += [each for each in outputs if isinstance(each, HangUp) and each.address == "m:1"]
        if ended:
            break
    assert now_ms == 31_000, "30 s after the registration, the last word that was confirmed"
    (hang_up,) = ended
    assert hang_up.reason == "no heartbeat confirmed for 30000 ms; another scheduler may lead"
    machine.on_input(Disconnected(address="m:1"), now_ms)
    assert {each.address for each in machine.on_input(Woke(), now_ms + 1_000)} == {"m:1", "s:1"}


def test_an_epoch_that_cannot_be_saved_lets_the_other_schedulers_be_tried() -> None:
    machine = two(jitter=0.0)
    machine.on_input(Connected(address="m:1"), 10)
    assert machine.on_input(welcome_of("m:1", epoch=5), 20) == [
        HangUp(address="s:1", reason="m:1 is the master"),
        SaveEpoch(address="m:1", joined=Joined(epoch=5)),
    ]
    machine.on_input(Disconnected(address="s:1"), 20)
    machine.on_input(Disconnected(address="m:1", reason="cannot be saved"), 30)
    assert machine.on_input(Woke(), 1_000) == [Dial(address="m:1"), Dial(address="s:1")]


def test_a_changed_list_of_gpus_reaches_the_scheduler_that_registered_before_it() -> None:
    machine = two()
    machine.on_input(Connected(address="m:1"), 10)
    machine.on_input(Connected(address="s:1"), 10)
    machine.on_input(GpusFound(gpus=(GPU,)), 15)
    machine.on_input(Written(address="s:1"), 16)
    (message,) = sent(machine.on_input(welcome_of("s:1"), 20))
    assert message.WhichOneof("body") == "inventory"


def silent_master() -> Session:
    """m:1 leads since 20 and says nothing more. A heartbeat is sent every 5 s."""
    machine = two()
    machine.on_input(Connected(address="m:1"), 10)
    machine.on_input(welcome_of("m:1", heartbeat_timeout_ms=15_000), 20)
    machine.on_input(Disconnected(address="s:1", reason="refused"), 21)
    return machine


def woken_until(machine: Session, end_ms: int) -> dict[int, list[str]]:
    """The addresses that are dialled, by time. Nobody listens there."""
    dialled: dict[int, list[str]] = {}
    while (now := machine.wake_at_ms) <= end_ms:
        for output in machine.on_input(Woke(), now):
            if isinstance(output, Dial):
                dialled.setdefault(now, []).append(output.address)
                machine.on_input(Disconnected(address=output.address, reason="refused"), now)
    return dialled


def test_while_a_master_is_silent_the_others_are_dialled_and_it_is_kept() -> None:
    machine = silent_master()
    dialled = woken_until(machine, 15_000)
    assert dialled == {at: ["s:1"] for at in (7_020, 9_020, 11_020, 13_020)}
    assert machine.open
    ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=1))
    machine.on_input(Received(address="m:1", message=ack), 14_990)
    assert woken_until(machine, 20_000) == {}, "it speaks again"


def test_a_new_master_replaces_one_that_is_silent() -> None:
    """As after SIGSTOP: the connection to the old one is intact."""
    machine = silent_master()
    woken_until(machine, 7_000)
    assert Dial(address="s:1") in machine.on_input(Woke(), 7_020)
    machine.on_input(Connected(address="s:1"), 7_030)
    outputs = machine.on_input(welcome_of("s:1", epoch=5), 7_040)
    assert outputs[0] == HangUp(address="m:1", reason="s:1 is the master")
    assert isinstance(outputs[1], SaveEpoch)
    machine.on_input(EpochSaved(joined=outputs[1].joined), 7_050)
    assert machine.open
    orders = pb.FromScheduler(orders=pb.Orders(starts=[pb.Start(lease_id=1)]))
    assert machine.on_input(Received(address="m:1", message=orders), 8_000) == [], "it woke up"
    assert machine.on_input(Disconnected(address="m:1", reason="hung up"), 8_001) == []
    assert machine.open


def test_an_old_master_does_not_replace_one_that_is_silent() -> None:
    machine = silent_master()
    woken_until(machine, 7_000)
    machine.on_input(Woke(), 7_020)
    machine.on_input(Connected(address="s:1"), 7_030)
    outputs = machine.on_input(welcome_of("s:1", epoch=3), 7_040)
    assert HangUp in map(type, outputs)
    assert machine.open


def server_of_the_next_start(machine) -> str:
    orders = pb.Orders(starts=[pb.Start(lease_id=9, task_id=9, attempt=1, detail=b"{}")])
    outputs = machine.on_input(Received(address="m:1", message=pb.FromScheduler(orders=orders)), 400)
    [ordered] = [output for output in outputs if isinstance(output, Ordered)]
    return ordered.starts[0].server


def test_tasks_learn_of_schedulers_that_joined_after_the_welcome() -> None:
    machine = session()
    machine.on_input(GpusFound(gpus=(GPU,)), 0)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    machine.on_input(Written(address="m:1"), 110)
    machine.on_input(welcome_of("m:1", rest_url="http://m:8080", other_rest_urls=["http://b:8080"]), 200)
    assert server_of_the_next_start(machine) == "http://m:8080,http://b:8080"
    while not any(
        message.HasField("heartbeat") for message in sent(machine.on_input(Woke(), machine.wake_at_ms))
    ):
        machine.on_input(Written(address="m:1"), machine.wake_at_ms)
    ack = pb.HeartbeatAck(seq=1, other_rest_urls=["http://b:8080", "http://c:8080"])
    machine.on_input(Received(address="m:1", message=pb.FromScheduler(heartbeat_ack=ack)), 300)
    assert server_of_the_next_start(machine) == "http://m:8080,http://b:8080,http://c:8080"
    unasked = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=0))  # while the engine stands still
    machine.on_input(Received(address="m:1", message=unasked), 310)
    assert server_of_the_next_start(machine) == "http://m:8080,http://b:8080,http://c:8080"
