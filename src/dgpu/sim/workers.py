"""Worker processes of a node in the simulation, and the sockets between them and the agent.

A worker runs one call at a time, as a timer, and keeps ends until they are taken. It outlives the agent, not its
keeper. Frames that the agent has sent are read even if the agent dies afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from dgpu.agent.node import NodeInput, NodeOutput
from dgpu.agent.run.runner import RunOrder
from dgpu.agent.workers.words import ConnectWorker, HangUpWorker, TellWorker, WorkerHungUp, WorkerSaid
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import WorkerSetup
from dgpu.sim.checkers import Checkers
from dgpu.sim.world import World
from dgpu.worker import frames

LOAD_MS = 700
_CONNECT_MS = 300  # until the next try


class Link:
    """A connection between agent and worker. `open` until one side has closed it."""

    def __init__(self, worker: SimWorker, deliver: Callable[[list[frames.ToAgent]], None]) -> None:
        self.worker = worker
        self.deliver = deliver
        self.is_open = True


class _Call:
    def __init__(self, frame: frames.Call) -> None:
        self.frame = frame
        _, ms, code = frame.entrypoint.split(":")
        self.left_ms, self.code = int(ms), int(code)
        self.order = RunOrder(
            lease_id=LeaseId(frame.lease),
            task_id=TaskId(frame.task_id),
            attempt=frame.attempt,
            nonce=frame.nonce,
            cluster_id=frame.cluster,
        )


class SimWorker:
    def __init__(
        self,
        world: World,
        checkers: Checkers,
        node_id: NodeId,
        order: RunOrder,
        setup: WorkerSetup,
        leave: Callable[[], None],
    ) -> None:
        self._world, self._checkers, self._node_id = world, checkers, node_id
        self._app_id, self._beat_ms = setup.app_id, setup.heartbeat_ms
        self.order = order
        self._leave = leave  # exits by itself
        self._link: Link | None = None
        self._queue: dict[int, _Call] = {}
        self._running: _Call | None = None
        self._runs_since = 0
        self._done: dict[int, tuple[_Call, frames.Done]] = {}
        self._models: dict[str, bool] = {}  # whether it is loaded
        self._is_ready = self._is_leaving = False
        self._turn = 0  # a planned step of an earlier turn is ignored
        self._stops: set[str] = set()  # why it makes no steps: frozen by its keeper, or stopped by a signal
        self._unread: list[Callable[[], None]] = []
        self.inbox: list[frames.ToWorker] = []  # in the buffer of its socket
        self.is_alive = True
        self._after(world.between(100, 4_000), self._get_ready)
        self._after(self._beat_ms, self._beat)

    # the process

    def stop(self, why: str) -> None:
        if not self._stops and self._running is not None:
            self._running.left_ms = max(0, self._running.left_ms - (self._world.now - self._runs_since))
            self._checkers.on_asleep(self._running.order)
        self._stops.add(why)
        self._turn += 1

    def go_on(self, why: str) -> None:
        if why not in self._stops:
            return
        self._stops.discard(why)
        if self._stops or not self.is_alive:
            return
        if self._running is not None:
            self._run(self._running)
        waiting, self._unread = self._unread, []
        for action in waiting:
            action()

    def end(self) -> None:
        """The process is gone."""
        if not self.is_alive:
            return
        self.is_alive = False
        if self._running is not None and not self._stops:
            self._checkers.on_asleep(self._running.order)
        self._turn += 1
        self._close()

    def _after(self, ms: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.is_alive:
                self.read(action)

        self._world.after(ms, act)

    def read(self, action: Callable[[], None]) -> None:
        """Now, or when the process continues."""
        if self._stops:
            self._unread.append(action)
        elif self.is_alive:
            action()

    def _get_ready(self) -> None:
        self._is_ready = True
        self._say(frames.Ready())
        self._begin()

    def _beat(self) -> None:
        self._say(frames.Beat(at=self._world.now / 1_000))
        self._after(self._beat_ms, self._beat)

    # its socket

    def accept(self, link: Link) -> None:
        """The newest connection replaces the one before, whose last words are read first."""
        self.receive()
        self._close()
        self._link = link
        calls = [(call, "queued") for call in self._queue.values()]
        calls += [(self._running, "running")] if self._running is not None else []
        calls += [(call, "done") for call, _ in self._done.values()]
        held = tuple(
            frames.HeldCall(
                lease=call.frame.lease,
                state=state,  # type: ignore[arg-type]
                task_id=call.frame.task_id,
                attempt=call.frame.attempt,
                nonce=call.frame.nonce,
                cluster=call.frame.cluster,
            )
            for call, state in calls
        )
        self._say(frames.Hello(protocol=frames.PROTOCOL, pid=1, calls=held, models=self._states()))
        if self._is_ready:
            self._say(frames.Ready())
        for _, done in self._done.values():
            self._say(done)

    def _close(self) -> None:
        if self._link is not None:
            self._link.is_open = False
            self._link.deliver([])
            self._link = None

    def break_link(self) -> None:
        self._close()

    def _say(self, frame: frames.ToAgent) -> None:
        if self._link is not None:
            self._link.deliver([frame])

    def receive(self) -> None:
        said, self.inbox = self.inbox, []
        for frame in said:
            match frame:
                case frames.Call():
                    self._take(frame)
                case frames.Cancel():
                    self._cancel(frame)
                case frames.Taken():
                    for lease in frame.leases:
                        self._done.pop(lease, None)
                case frames.Leave():
                    self._is_leaving = True
                    if self._world.chance.random() < 0.8:  # the others do not find their end
                        self._after(self._world.between(0, 900), self._leave)
        self._begin()

    # calls

    def _take(self, frame: frames.Call) -> None:
        call = _Call(frame)
        self._checkers.on_call(frame.entrypoint, self._app_id)
        is_running = self._running is not None and self._running.frame.lease == frame.lease
        if not is_running and frame.lease not in self._queue and frame.lease not in self._done:
            self._queue[frame.lease] = call

    def _cancel(self, cancel: frames.Cancel) -> None:
        call = self._queue.pop(cancel.lease, None)
        if call is not None:
            self._finish(call, frames.Done(lease=cancel.lease, outcome="cancelled"))
            return
        running = self._running
        is_it = running is not None and running.frame.lease == cancel.lease
        if running is not None and is_it and not cancel.queued and self._world.chance.random() < 0.5:
            self._turn += 1  # a function that looks at dgpu.cancelled()
            self._running = None
            self._checkers.on_asleep(running.order)
            self._finish(running, frames.Done(lease=cancel.lease, outcome="cancelled"))

    def _begin(self) -> None:
        if self._running is not None or self._is_leaving or not self._is_ready or not self._queue:
            return
        call = self._queue.pop(next(iter(self._queue)))
        model = call.frame.model
        if model and model not in self._models:
            self._models = {model: False}  # the one before makes room
            self._say(frames.Models(models=self._states()))
            call.left_ms += LOAD_MS
        self._running = call
        self._say(frames.Started(lease=call.frame.lease))
        self._run(call)

    def _run(self, call: _Call) -> None:
        self._runs_since = self._world.now
        self._checkers.on_awake(call.order, self._node_id)
        self._turn += 1
        turn = self._turn

        def end() -> None:
            if self._turn == turn and self.is_alive:
                self._return(call)

        self._world.after(call.left_ms, end)

    def _return(self, call: _Call) -> None:
        self._running = None
        self._checkers.on_asleep(call.order)
        self._checkers.on_exit(call.order, call.code)
        if call.frame.model and not self._models.get(call.frame.model, True):
            self._models[call.frame.model] = True
            self._say(frames.Models(models=self._states()))
        outcome: frames.Outcome = "raised" if call.code else "returned"
        self._finish(call, frames.Done(lease=call.frame.lease, outcome=outcome, result=b"\xc0"))
        self._begin()

    def _finish(self, call: _Call, done: frames.Done) -> None:
        self._done[done.lease] = call, done
        self._say(done)

    def _states(self) -> tuple[frames.ModelState, ...]:
        return tuple(
            frames.ModelState(name=name, loading=not loaded, load_ms=LOAD_MS if loaded else 0)
            for name, loaded in self._models.items()
        )


class SimWorkers:
    """The workers of a node. `put` and `later` act as the agent: not before it wakes, and never after its end."""

    def __init__(self, world: World, checkers: Checkers, node_id: NodeId) -> None:
        self._world, self._checkers, self._node_id = world, checkers, node_id
        self._workers: dict[LeaseId, SimWorker] = {}
        self._links: dict[LeaseId, Link] = {}
        self._wanted: set[LeaseId] = set()  # the agent connects to them again and again
        self._arrives_at = 0
        self._put: Callable[[NodeInput], None] = lambda _value: None
        self._later: Callable[[int, Callable[[], None]], None] = lambda _ms, _action: None
        self.leave: Callable[[LeaseId], None] = lambda _lease_id: None  # a worker exits

    @property
    def alive(self) -> list[SimWorker]:
        return list(self._workers.values())

    # told by the keeper

    def start(self, order: RunOrder) -> None:
        if order.worker is not None:
            lease_id = order.lease_id
            self._workers[lease_id] = SimWorker(
                self._world,
                self._checkers,
                self._node_id,
                order,
                order.worker,
                lambda: self.leave(lease_id),
            )

    def end(self, lease_id: LeaseId) -> None:
        worker = self._workers.pop(lease_id, None)
        if worker is not None:
            worker.end()

    def freeze(self, lease_id: LeaseId) -> None:
        if (worker := self._workers.get(lease_id)) is not None:
            worker.stop("frozen")

    def thaw(self, lease_id: LeaseId) -> None:
        if (worker := self._workers.get(lease_id)) is not None:
            worker.go_on("frozen")

    # the agent's life

    def begin(
        self, put: Callable[[NodeInput], None], later: Callable[[int, Callable[[], None]], None]
    ) -> None:
        self._put, self._later = put, later

    def agent_died(self) -> None:
        self._wanted.clear()
        for lease_id in list(self._links):
            self._hang_up(lease_id)

    def carry(self, output: NodeOutput) -> None:
        match output:
            case ConnectWorker():
                self._wanted.add(output.lease_id)
                self._connect(output.lease_id)
            case HangUpWorker():
                self._wanted.discard(output.lease_id)
                self._hang_up(output.lease_id)
            case TellWorker():
                link = self._links.get(output.lease_id)
                if link is not None:
                    self._send(link, output.frames)

    def _send(self, link: Link, said: list[frames.ToWorker]) -> None:
        worker = link.worker
        worker.inbox += said
        self._world.after(self._delay_ms(), lambda: worker.read(worker.receive))

    def _hang_up(self, lease_id: LeaseId) -> None:
        link = self._links.pop(lease_id, None)
        if link is not None:
            link.is_open = False
            link.deliver = lambda _said: None

    def _connect(self, lease_id: LeaseId) -> None:
        def connect() -> None:
            worker = self._workers.get(lease_id)
            if lease_id not in self._wanted or lease_id in self._links:
                return
            if worker is None:
                self._later(_CONNECT_MS, connect)
                return
            link = self._links[lease_id] = Link(worker, lambda said: self._deliver(lease_id, link, said))
            greets_after_ms = self._world.between(0, 30)
            if self._world.chance.random() < 0.2:  # a function holds the interpreter's lock
                greets_after_ms = self._world.between(0, 8_000)
            self._world.after(
                greets_after_ms, lambda: worker.read(lambda: worker.accept(link) if link.is_open else None)
            )

        self._later(self._world.between(0, 30), connect)

    def _deliver(self, lease_id: LeaseId, link: Link, said: list[frames.ToAgent]) -> None:
        """No frames: the worker has closed the connection."""

        def arrive() -> None:
            if self._links.get(lease_id) is not link:
                return
            if said:
                self._put(WorkerSaid(lease_id=lease_id, frames=said))
                return
            del self._links[lease_id]
            self._put(WorkerHungUp(lease_id=lease_id))
            if lease_id in self._wanted:
                self._connect(lease_id)

        self._later(self._delay_ms(), arrive)

    def _delay_ms(self) -> int:
        """In order, like a socket."""
        self._arrives_at = max(self._arrives_at, self._world.now + self._world.between(0, 15))
        return self._arrives_at - self._world.now
