"""Seeds: a node, its workers and a scheduler, with kills and cuts. No call runs twice at the same time."""

from __future__ import annotations

import random

import pytest

from dgpu.agent.lifecycle_words import CheckRelease, GpusReleased, StartRuns, StopRuns
from dgpu.agent.run.runner import KnownRun, RunEnd, RunsEnded, RunsListed, RunsStarted
from dgpu.agent.session_words import Disconnected
from dgpu.agent.workers.words import ConnectWorker, HangUpWorker, TellWorker, WorkerHungUp, WorkerSaid
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.core.model.task import Outcome
from dgpu.worker import frames
from worker_node import Node, call, start

TASKS = 6
STEPS = 150


class Process:
    """A worker: one call runs at a time, results are kept until they are taken."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.queue: dict[int, frames.Call] = {}
        self.running: frames.Call | None = None
        self.done: dict[int, frames.Call] = {}
        self.is_connected = False

    def hello(self) -> list[frames.ToAgent]:
        self.is_connected = True
        states = [(each, "queued") for each in self.queue.values()]
        states += [(self.running, "running")] if self.running else []
        states += [(each, "done") for each in self.done.values()]
        held = tuple(
            frames.HeldCall(
                lease=each.lease, state=state, task_id=each.task_id, attempt=each.attempt, nonce=each.nonce
            )
            for each, state in states
        )
        ends = [frames.Done(lease=lease, outcome="returned") for lease in self.done]
        return [frames.Hello(protocol=1, pid=1, calls=held), frames.Ready(), *ends]

    def hear(self, frame: frames.ToWorker) -> None:
        if isinstance(frame, frames.Call):
            assert frame.lease not in {*self.queue, *self.done, self.running and self.running.lease}
            self.queue[frame.lease] = frame
        elif isinstance(frame, frames.Taken):
            for lease in frame.leases:
                self.done.pop(lease, None)


class World:
    """`forgets_calls`: a mutant, which must be found."""

    def __init__(self, seed: int, *, forgets_calls: bool = False) -> None:
        self.chance = random.Random(seed)
        self.forgets_calls = forgets_calls
        self.processes: dict[int, Process] = {}
        self.leases: dict[int, tuple[int, int]] = {}  # what the scheduler believes: task and worker
        self.results: set[int] = set()
        self.next_lease = 100
        self.node = Node()
        self.start_agent()

    # -- the node

    def start_agent(self) -> None:
        now_ms = self.node.now_ms
        self.node = Node()
        self.node.now_ms = now_ms
        runs = tuple(
            KnownRun(
                lease_id=LeaseId(lease),
                task_id=TaskId(3),
                attempt=1,
                started_at_ms=1,
                worker_silence_ms=30_000,
                nonce="x",
            )
            for lease in self.processes
        )
        for process in self.processes.values():
            process.is_connected = False
        self.node.feed(RunsListed(runs=runs))
        self.serve()
        self.register()

    def register(self) -> None:
        if self.forgets_calls:
            book = self.node.machine.workers.book
            book.held = list
            book.end_worker = lambda *_: None  # the second fence
        self.node.messages.clear()
        held = {each.lease_id for each in self.node.machine.held()}
        self.leases = {lease: of for lease, of in self.leases.items() if lease in held}
        workers = {lease for lease in self.processes if lease in held}
        self.node.wait(2_000).connect(keep=(*self.leases, *workers))
        self.serve()

    def serve(self) -> None:
        """Carries out what the machine wants, until it wants nothing more."""
        while outputs := self.node.outputs:
            self.node.outputs = []
            for output in outputs:
                match output:
                    case ConnectWorker():
                        self.connect(output.lease_id)
                    case TellWorker():
                        self.tell(output)
                    case HangUpWorker() if output.lease_id in self.processes:
                        self.processes[output.lease_id].is_connected = False
                    case StartRuns():
                        for order in output.orders:
                            self.processes[order.lease_id] = Process(order.lease_id)
                            self.node.feed(RunsStarted(started=((order.lease_id, self.node.now_ms),)))
                    case CheckRelease():
                        released = tuple((lease_id, ()) for lease_id, _ in output.leases)
                        self.node.feed(GpusReleased(released=released))
                    case StopRuns():
                        for order in output.orders:
                            self.kill(order.lease_id)

    def connect(self, lease: int) -> None:
        process = self.processes.get(lease)
        if process is not None and not process.is_connected:
            self.node.feed(WorkerSaid(lease_id=LeaseId(lease), frames=process.hello()))

    def tell(self, output: TellWorker) -> None:
        process = self.processes.get(output.lease_id)
        if process is not None and process.is_connected:
            for frame in output.frames:
                process.hear(frame)

    def kill(self, lease: int) -> None:
        process = self.processes.pop(lease, None)
        if process is None:
            return
        end = RunEnd(lease_id=LeaseId(lease), outcome=Outcome.SIGNALED, signal=9, at_ms=self.node.now_ms)
        words = [RunsEnded(ended=(end,)), WorkerHungUp(lease_id=LeaseId(lease))]
        self.chance.shuffle(words)
        self.node.feed(*words)

    # -- the steps

    def step(self) -> None:
        good = [self.place, self.place, self.work, self.work, self.work, self.acknowledge, self.acknowledge]
        bad = [self.cut_worker, self.cut_session, self.kill_worker, self.kill_agent]
        act = self.chance.choice([*good, *bad])
        act()
        self.serve()
        self.hear_reports()

    def place(self) -> None:
        if len(self.processes) < 2:
            self.next_lease += 1
            order = start()
            order.lease_id = self.next_lease
            self.node.order(starts=[order])
            self.serve()
        waiting = set(range(TASKS)) - self.results - {task for task, _ in self.leases.values()}
        for task in sorted(waiting) if self.processes else ():
            self.next_lease += 1
            worker = self.chance.choice(sorted(self.processes))
            self.leases[self.next_lease] = task, worker
            order = call(self.next_lease, task_id=task + 1, worker_lease_id=worker)
            self.node.order(calls=[order])

    def work(self) -> None:
        """One call begins or ends. A second run of its task at the same time is the failure."""
        if not self.processes:
            return
        process = self.processes[self.chance.choice(sorted(self.processes))]
        if process.running is None and process.queue:
            begun = process.queue.pop(next(iter(process.queue)))
            others = [each.running for each in self.processes.values() if each.running is not None]
            assert begun.task_id not in [each.task_id for each in others], "runs twice at the same time"
            process.running = begun
            self.say(process, frames.Started(lease=begun.lease))
        elif process.running is not None:
            ended, process.running = process.running, None
            process.done[ended.lease] = ended
            self.say(process, frames.Done(lease=ended.lease, outcome="returned"))

    def say(self, process: Process, frame: frames.ToAgent) -> None:
        if process.is_connected:
            self.node.say(frame, lease=process.lease)

    def acknowledge(self) -> None:
        self.node.ack_all()

    def cut_worker(self) -> None:
        for process in self.processes.values():
            if process.is_connected:
                process.is_connected = False
                self.node.feed(WorkerHungUp(lease_id=LeaseId(process.lease)))
                self.connect(process.lease)
                return

    def cut_session(self) -> None:
        self.node.feed(Disconnected(address="m:1", reason="cut"))
        self.serve()
        self.register()

    def kill_worker(self) -> None:
        if self.processes:
            self.kill(self.chance.choice(sorted(self.processes)))

    def kill_agent(self) -> None:
        self.start_agent()

    # -- the scheduler

    def hear_reports(self) -> None:
        for message in self.node.messages:
            for each in message.reports.returned:
                of = self.leases.pop(each.lease_id, None)
                if of is not None and each.outcome == "returned":
                    self.results.add(of[0])
            for each in message.reports.finished:
                lost = {lease for lease, (_, worker) in self.leases.items() if worker == each.lease_id}
                self.leases = {lease: of for lease, of in self.leases.items() if lease not in lost}


def run(seed: int, **facts: bool) -> World:
    world = World(seed, **facts)
    for _ in range(STEPS):
        world.step()
        if len(world.results) == TASKS:
            world.results.clear()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_no_call_runs_twice_at_the_same_time(seed: int) -> None:
    world = run(seed)
    for _ in range(200):
        if len(world.results) == TASKS:
            break
        for step in (world.place, world.work, world.work, world.acknowledge):
            step()
            world.serve()
            world.hear_reports()
    assert len(world.results) == TASKS, "every call ends once the faults are over"


def test_a_node_that_forgets_its_calls_is_found() -> None:
    """The mutant that shows that the seeds look at the right thing."""
    found = 0
    for seed in range(20):
        try:
            run(seed, forgets_calls=True)
        except AssertionError:
            found += 1
    assert found
