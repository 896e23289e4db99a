"""What counts as output of an attempt, and what does not."""

from __future__ import annotations

import pytest

from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output import intake as intake_module
from dgpu.service.task_output.intake import PART_BYTES, OutputIntake
from dgpu.service.task_output.intake_words import (
    ChunkArrived,
    Complain,
    Deliver,
    EndLink,
    FetchLeft,
    FetchTaken,
    FetchWanted,
    FindHolder,
    Holder,
    HolderFound,
    IntakeInput,
    IntakeOutput,
    LinkEnded,
    LinkOpened,
    PartsStored,
    RunDurable,
    StoreParts,
    TellAgent,
)
from dgpu.service.task_output.links import WINDOW_BYTES
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

LEASE = LeaseId((5 << 32) + 1)
FOREIGN = LeaseId((5 << 32) + 2)
GANG = LeaseId((5 << 32) + 3)
DURABLE = RunDurable(link_id=1, lease_id=LEASE, run=(TaskId(7), 1))


class Bench:
    """Nodes n1 and n2 are registered; n1 holds LEASE for task 7, n2 FOREIGN for task 8, both GANG for task 9."""

    def __init__(self) -> None:
        self.sessions = {"n1": "s1", "n2": "s2"}
        self.now = 0
        self.intake = OutputIntake(session_of=lambda node_id: self.sessions.get(node_id, ""))
        ranks = tuple(placed(9, GANG + rank, f"n{rank + 1}") for rank in range(2))
        events = (placed(7, LEASE, "n1"), placed(8, FOREIGN, "n2"), GangPlaced(1, TaskId(9), ranks))
        self.put(CommittedGroup(index=1, events=events))
        for link, node in ((1, "n1"), (2, "n2")):
            (credit,) = self.open(link, node)
            assert isinstance(credit, TellAgent)
            assert credit.message.credit.bytes == WINDOW_BYTES

    def put(self, value: IntakeInput) -> list[IntakeOutput]:
        return self.intake.on_input(value, self.now)

    def open(self, link: int, node: str, session: str | None = None) -> list[IntakeOutput]:
        session = self.sessions[node] if session is None else session
        return self.put(LinkOpened(link_id=link, node_id=NodeId(node), session_id=session))

    def chunk(self, link: int = 1, data: bytes = b"x", **facts) -> list[IntakeOutput]:
        values = {"lease_id": LEASE, "task_id": 7, "attempt": 1, **facts}
        return self.put(ChunkArrived(link_id=link, chunk=pb.OutputChunk(data=data, **values)))


def placed(task: int, lease: int, node: str, attempt: int = 1) -> TaskPlaced:
    return TaskPlaced(1, TaskId(task), LeaseId(lease), attempt, NodeId(node), ())


def unwanted(outputs: list[IntakeOutput]) -> list[int]:
    told = [output.message for output in outputs if isinstance(output, TellAgent)]
    return [message.unwanted.lease_id for message in told if message.HasField("unwanted")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("node", "session"), [("n1", "guess"), ("n1", ""), ("n9", "s1"), ("n9", "")])
def test_an_unknown_node_or_session_is_refused(bench, node, session) -> None:
    outputs = bench.open(3, node, session)
    assert [type(output) for output in outputs] == [Complain, EndLink]
    assert bench.intake.refused == 1
    assert bench.chunk(link=3, last=True) == []
    assert bench.intake.is_attached(NodeId("n1"))


def test_a_stream_ends_with_its_session(bench) -> None:
    bench.sessions["n1"] = "a newer one"
    outputs = bench.chunk(last=True)
    assert [type(output) for output in outputs] == [EndLink]
    assert not bench.intake.is_attached(NodeId("n1"))


def test_output_of_the_node_that_holds_the_lease_is_stored(bench) -> None:
    (store,) = bench.chunk(data=b"hello", offset=3, last=True, end=8, kept_ms=50)
    assert isinstance(store, StoreParts)
    (part,) = store.parts
    assert (part.task_id, part.attempt, part.lease_id, part.node_id) == (7, 1, LEASE, "n1")
    assert (part.offset, part.content, part.end, part.kept_until_ms) == (3, b"hello", 8, 50)
    (told,) = bench.put(PartsStored(ok=True))
    assert told == DURABLE


@pytest.mark.parametrize(
    ("link", "facts"),
    [
        (2, {}),  # of another node's lease
        (1, {"lease_id": FOREIGN, "task_id": 8}),
        (1, {"lease_id": FOREIGN}),  # one's own task under another's lease
        (1, {"task_id": 8}),
        (1, {"attempt": 2}),
        (1, {"lease_id": GANG + 1, "task_id": 9, "attempt": run_number(1, 1)}),  # another rank
        (1, {"lease_id": GANG, "task_id": 9, "attempt": run_number(1, 1)}),
    ],
)
def test_output_of_another_lease_task_or_attempt_is_refused(bench, link, facts) -> None:
    for _ in range(3):
        outputs = bench.chunk(link=link, last=True, **facts)
        assert unwanted(outputs) == [facts.get("lease_id", LEASE)]
        assert not any(isinstance(output, StoreParts) for output in outputs)
    assert bench.intake.refused == 3


def test_refusals_are_logged_once_in_ten_seconds_with_their_number(bench) -> None:
    lines = []
    for bench.now in range(0, 10_001, 100):
        outputs = bench.chunk(link=2, data=b"", last=True)
        lines += [output.facts for output in outputs if isinstance(output, Complain)]
    assert [line["unlogged"] for line in lines] == [0, 99]
    assert (lines[0]["node"], lines[0]["lease"], lines[0]["task"]) == ("n2", LEASE, 7)


def test_an_upload_cannot_change_its_task_half_way(bench) -> None:
    bench.chunk(data=b"mine")
    assert unwanted(bench.chunk(data=b"yours", offset=4, task_id=8, last=True)) == [LEASE]


def test_a_lease_of_before_the_start_is_looked_up(bench) -> None:
    old = LeaseId(3)
    assert bench.chunk(data=b"a", lease_id=old) == [FindHolder(lease_id=old)]
    assert bench.chunk(data=b"b", lease_id=old, offset=1, last=True) == []
    holder = Holder(node_id=NodeId("n1"), task_id=TaskId(7), attempt=1)
    (store,) = bench.put(HolderFound(lease_id=old, holder=holder))
    assert [part.content for part in store.parts] == [b"ab"]


def test_a_lease_that_history_does_not_know_is_refused_only_if_history_is_complete(bench) -> None:
    old = LeaseId(3)
    bench.chunk(lease_id=old, last=True)
    assert bench.put(HolderFound(lease_id=old, holder=None, is_sure=False)) == []
    bench.chunk(lease_id=old, last=True)
    assert unwanted(bench.put(HolderFound(lease_id=old, holder=None))) == [old]
    bench.chunk(lease_id=old, last=True)
    other = Holder(node_id=NodeId("n2"), task_id=TaskId(7), attempt=1)
    assert unwanted(bench.put(HolderFound(lease_id=old, holder=other))) == [old]
    assert bench.intake.refused == 2


def test_the_answer_to_a_fetch_comes_from_the_node_that_was_asked(bench) -> None:
    (ask,) = bench.put(wanted(1))
    assert (ask.link_id, ask.message.fetch.lease_id, ask.message.fetch.task_id) == (1, LEASE, 7)
    for forged in (bench.chunk(link=2, data=b"evil", request_id=1), bench.chunk(lease_id=9, request_id=1)):
        assert not any(isinstance(output, Deliver) for output in forged)
    assert bench.intake.refused == 2
    (delivered,) = bench.chunk(data=b"true", request_id=1, offset=4, last=True)
    assert (delivered.offset, delivered.data, delivered.ended) == (4, b"true", True)


def wanted(request_id: int) -> FetchWanted:
    return FetchWanted(
        request_id=request_id,
        node_id=NodeId("n1"),
        lease_id=LEASE,
        task_id=TaskId(7),
        attempt=1,
        offset=0,
    )


def test_a_slow_reader_pauses_its_own_fetch(bench) -> None:
    bench.put(wanted(1))
    bench.put(wanted(2))
    piece = b"x" * (64 << 10)
    outputs = [output for _ in range(5) for output in bench.chunk(data=piece, request_id=1)]
    assert [output.paused for output in outputs if isinstance(output, Deliver)] == [False] * 4 + [True]
    assert any(
        isinstance(output, TellAgent) and output.message.cancel_fetch.request_id == 1 for output in outputs
    )
    (delivered,) = (output for output in bench.chunk(request_id=2) if isinstance(output, Deliver))
    assert not delivered.paused
    bench.put(FetchTaken(request_id=2))
    (cancel,) = bench.put(FetchLeft(request_id=2))
    assert cancel.message.cancel_fetch.request_id == 2


def test_a_reader_hears_that_the_stream_broke(bench) -> None:
    bench.put(wanted(1))
    assert bench.put(LinkEnded(link_id=1)) == [Deliver(request_id=1, paused=True)]
    assert bench.put(wanted(2)) == [Deliver(request_id=2, paused=True)]


def test_a_stream_that_sends_more_than_its_credit_is_ended(bench, monkeypatch) -> None:
    monkeypatch.setattr(intake_module, "MAX_UNSTORED_BYTES", 0)  # no credit comes back
    for number in range(8):
        outputs = bench.chunk(data=b"x" * (128 << 10), offset=number * (128 << 10))
        assert not any(isinstance(output, EndLink | TellAgent) for output in outputs)
    assert [type(output) for output in bench.chunk(data=b"x")] == [EndLink]


def test_a_chunk_that_is_too_large_ends_the_stream(bench) -> None:
    assert [type(output) for output in bench.chunk(data=b"x" * (300 << 10))] == [EndLink]


def test_large_output_becomes_parts_of_a_bounded_size(bench) -> None:
    stores: list[StoreParts] = []
    durable: list[RunDurable] = []
    offset = 0
    for number in range(100):
        outputs = bench.chunk(data=b"x" * (64 << 10), offset=offset, last=number == 99)
        offset += 64 << 10
        while outputs:
            stores += [output for output in outputs if isinstance(output, StoreParts)]
            durable += [output for output in outputs if isinstance(output, RunDurable)]
            is_storing = any(isinstance(output, StoreParts) for output in outputs)
            outputs = bench.put(PartsStored(ok=True)) if is_storing else []
    parts = [part for store in stores for part in store.parts]
    assert max(len(part.content) for part in parts) <= PART_BYTES
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert b"".join(part.content for part in parts) == b"x" * (6_400 << 10)
    assert durable == [DURABLE]


def test_a_part_that_cannot_be_stored_makes_the_agent_send_all_again(bench) -> None:
    """Stored must mean that every part is on disk, also those before the last."""
    bench.chunk(data=b"x" * (256 << 10))
    outputs = bench.chunk(data=b"x" * (256 << 10), offset=256 << 10)
    (first,) = (output for output in outputs if isinstance(output, StoreParts))
    assert len(first.parts) == 1
    bench.chunk(data=b"end", offset=512 << 10, last=True)
    outputs = bench.put(PartsStored(ok=False))
    assert not any(isinstance(output, StoreParts) for output in outputs)
    assert bench.intake.store_failed
    (again,) = (output for output in bench.chunk(data=b"all", last=True) if isinstance(output, StoreParts))
    assert [part.content for part in again.parts] == [b"all"]
    (told,) = bench.put(PartsStored(ok=True))
    assert told == DURABLE


def test_no_credit_comes_back_while_too_much_waits_for_the_disk(bench, monkeypatch) -> None:
    monkeypatch.setattr(intake_module, "MAX_UNSTORED_BYTES", 256 << 10)
    outputs = [
        output
        for number in range(4)
        for output in bench.chunk(data=b"x" * (256 << 10), offset=number * (256 << 10))
    ]
    assert len([output for output in outputs if isinstance(output, TellAgent)]) == 1
    outputs = bench.put(PartsStored(ok=True))
    outputs += bench.put(PartsStored(ok=True))
    assert any(isinstance(output, TellAgent) and output.message.HasField("credit") for output in outputs)


def test_what_an_agent_never_finishes_is_forgotten(bench) -> None:
    leases = [LeaseId(LEASE + 10 + number) for number in range(10)]
    bench.put(CommittedGroup(index=2, events=tuple(placed(7, lease, "n1") for lease in leases)))
    for lease in leases:
        bench.chunk(lease_id=lease, data=b"x" * 1_000)
    link = bench.intake._links[1]
    assert len(link.uploads) == intake_module.MAX_UPLOADS


def test_an_upload_without_its_beginning_does_not_count_as_whole(bench) -> None:
    """A doubled last piece, or one whose upload was forgotten: the node would delete what was never stored."""
    assert bench.chunk(data=b"end", offset=97, last=True, end=100) == []
    outputs = bench.chunk(data=b"x" * 50) + bench.chunk(data=b"x" * 50, offset=50, last=True, end=100)
    assert any(isinstance(output, StoreParts) for output in outputs)
    (told,) = bench.put(PartsStored(ok=True))
    assert told == DURABLE
    in_parts = bench.chunk(data=b"end", offset=97, last=True, end=100, kept_ms=1)
    assert any(isinstance(output, StoreParts) for output in in_parts)
