"""Tasks as processes, through the keeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dgpu.agent.accounts import Accounts, IsolationOptions, NoAccount, Person
from dgpu.agent.frames import PROTOCOL, Frame
from dgpu.agent.keeper_link import KeeperError, KeeperGoneError, KeeperLink, protocol_of
from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.options import ContainerOptions
from dgpu.agent.run.containers import NotHereError
from dgpu.agent.run.keeper_watch import KeeperWatch
from dgpu.agent.run.lease_processes import LeaseProcesses
from dgpu.agent.run.orders import (
    base_environment,
    check_keeper,
    end_of,
    known_run,
    may_lack_memory,
    not_started,
    read_end,
    spawn_order,
)
from dgpu.agent.run.remains import Remains
from dgpu.agent.run.runner import (
    KnownRun,
    RunEnd,
    RunnerFit,
    RunnerLost,
    RunnerWord,
    RunOrder,
    RunsEnded,
    RunsFrozen,
    RunsListed,
    RunsStarted,
    StopOrder,
)
from dgpu.agent.run.stale_output import find_stale
from dgpu.agent.run.upload_staging import UploadStaging
from dgpu.agent.run.user_look_ups import UserLookUps
from dgpu.agent.run.worker_orders import WorkerAddress
from dgpu.agent.start_watch import START_MS
from dgpu.agent.upload_cache import UploadCache
from dgpu.agent.worker_dirs import worker_dir_of
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.run_dirs import run_dir_name

_RETRY_SECONDS = 1.0
_STOP_SECONDS = 60.0
_GREETING_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_MAX_GREETINGS = 3  # keepers that may end during the greeting before it counts as a failure

_log = structlog.get_logger("dgpu.agent")


class ProcessRunner:
    def __init__(
        self,
        *,
        settings: KeeperSettings,
        node_ids: Sequence[NodeId],
        say: Callable[[NodeId, Sequence[RunnerWord]], None],
        grace_ms: int,
        accounts: Accounts | None = None,
        containers: ContainerOptions | None = None,
        uploads: UploadCache | None = None,
    ) -> None:
        self._settings = settings
        self._accounts = accounts or Accounts(
            Path(settings.directory), Path(settings.work_dir), IsolationOptions()
        )
        self._users = UserLookUps(self._accounts, spawn=self._spawn, say=say)
        self._uploads = UploadStaging(
            Path(settings.work_dir),
            self._accounts,
            uploads or UploadCache(Path(settings.directory) / "uploads"),
            spawn=self._spawn_ready,
            say=say,
        )
        self._containers = containers
        self._node_ids = tuple(node_ids)
        self._say = say
        self._grace_ms = grace_ms
        self._surroundings = base_environment()
        self._link: KeeperLink | None = None
        self._keeper_id = ""
        self._keeper_pid = 0
        self._protocol = 0  # of the connected keeper
        self._watch = KeeperWatch(
            Path(settings.directory),
            send=self._send,
            on_change=self._say_fitness,
            on_return=self._say_words_again,
        )
        self.names_dirs = False  # by `wire.run_dirs`; an older keeper names them by lease
        self._nodes: dict[LeaseId, NodeId] = {}
        self._processes = LeaseProcesses(worker_dir_of(settings.directory, settings.work_dir))
        self._dirs: dict[LeaseId, str] = {}  # of every lease that is not forgotten
        self._remains = Remains(settings.output_dir, self._later)
        self._words: dict[NodeId, list[Any]] = {}  # the last contact of a scheduler, for a new keeper
        self._greeted: asyncio.Future[dict[str, Any]] | None = None
        self._early: list[Frame] | None = None  # frames that arrived while the hello was being read
        self._reopening: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._closing = False
        self._at_work: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises KeeperError if no keeper can be started. Waits until the keeper answers: before that, the running
        tasks are unknown, and the node must not register.
        """
        self._watch.start()
        await self._uploads.tidy()
        for chance in range(_MAX_GREETINGS):
            self._greeted = asyncio.get_running_loop().create_future()
            self._early = []
            self._link = await KeeperLink.open(self._settings, on_frame=self._on_frame, on_lost=self._on_lost)
            try:
                await self._on_hello(await self._greeting())
            except KeeperGoneError:
                if chance + 1 == _MAX_GREETINGS:
                    raise
            else:
                break
        early, self._early = self._early, None
        for frame in early or ():
            self._on_frame(frame)

    async def _greeting(self) -> dict[str, Any]:
        assert self._greeted is not None  # noqa: S101 - made by `open`
        while True:
            try:
                return await asyncio.wait_for(asyncio.shield(self._greeted), _GREETING_SECONDS)
            except TimeoutError:
                self._watch.be_unfit("its keeper does not answer")

    def start(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None:
        for order in orders:
            self._nodes[order.lease_id] = node_id
            self._dirs[order.lease_id] = run_dir_name(order.task_id, order.attempt)
            self._processes.ordered(order)
        self._spawn(node_id, self._users.pass_known(node_id, orders))

    def _spawn(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None:
        self._spawn_ready(node_id, self._uploads.pass_staged(node_id, orders))

    def _spawn_ready(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None:
        spawns: list[dict[str, Any]] = []
        failed: list[RunEnd] = []
        for order in orders:
            try:
                check_keeper(order, self._protocol)
                spawns.append(
                    spawn_order(
                        order,
                        node_id=node_id,
                        keeper_id=self._keeper_id,
                        surroundings=self._surroundings,
                        grace_ms=self._grace_ms,
                        start_ms=START_MS,
                        person=self._person(order),
                        work_dir=self._settings.work_dir,
                        containers=self._containers,
                        keeper_protocol=self._protocol,
                        ports=self._processes.ports,
                        worker_dir=self._processes.worker_dir,
                    )
                    | {"staged": self._uploads.take(order)}
                )
            except (msgspec.DecodeError, ValueError, NoAccount, NotHereError) as error:
                failed.append(not_started(order.lease_id, error))
                self._uploads.forget([order.lease_id])
        self._send({"spawn": spawns})
        if failed:
            self._say(node_id, [RunsEnded(ended=tuple(failed))])

    def _person(self, order: RunOrder) -> Person | None:
        """Raises NoAccount."""
        if order.user is None:
            return None
        person = self._accounts.remembered(order.tenant, order.user)
        self._processes.set_uid(order.lease_id, person.account.uid)
        return person

    def stop(self, orders: Sequence[StopOrder]) -> None:
        self._users.withdraw(order.lease_id for order in orders)
        self._uploads.withdraw(order.lease_id for order in orders)
        stops = [[order.lease_id, order.grace_ms, order.cause.value] for order in orders]
        self._send({"warn": [order.lease_id for order in orders if order.warned], "stop": stops})

    def thaw(self, lease_ids: Sequence[LeaseId]) -> None:
        self._send({"thaw": list(lease_ids)})

    def forget(self, lease_ids: Sequence[LeaseId]) -> None:
        self._send({"forget": list(lease_ids)})
        self._uploads.forget(lease_ids)
        self._remains.forget(lease_ids)
        for lease_id in lease_ids:
            self._nodes.pop(lease_id, None)
            self._processes.forget(lease_id)
            self._dirs.pop(lease_id, None)
        self._retire_if_old()

    def heard(self, node_id: NodeId, *, at_ms: int, lease_ms: int, action: str) -> None:
        self._words[node_id] = [node_id, at_ms, lease_ms, action]
        if not self._watch.is_silent:  # otherwise it gets the latest one when it answers again
            self._send({"word": [self._words[node_id]]})

    def owners(self) -> dict[int, LeaseId | None]:
        pid = self._keeper_pid
        return self._processes.owners(keeper_pid=pid, keeper_id=self._keeper_id) if pid else {}

    def ports_of(self, node_id: NodeId, lease_id: LeaseId) -> Mapping[int, int] | None:
        return self._processes.ports.of(lease_id) if self._nodes.get(lease_id) == node_id else None

    def worker_address(self, lease_id: LeaseId) -> WorkerAddress | None:
        return self._processes.worker_address(lease_id)

    def dirs_in_use(self) -> frozenset[str]:
        """Names of directories that must not be deleted: their runs have not ended or are not reported yet."""
        return frozenset(self._dirs.values())

    async def close(self, *, stop_tasks: bool) -> None:
        self._closing = True
        self._watch.stop()
        if self._reopening is not None:
            self._reopening.cancel()
        if self._link is None:
            return
        if stop_tasks:
            self._send({"shutdown": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_SECONDS)
        else:
            _log.info("tasks_go_on", leases=len(self._nodes), keeper_pid=self._keeper_pid)
        if self._link is not None:
            self._link.close()
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=5)

    # -- to the keeper

    def _send(self, frame: Frame) -> None:
        if self._link is not None:
            self._link.send(frame)

    # -- from the keeper

    def _on_frame(self, frame: Frame) -> None:
        if self._greeted is not None and not self._greeted.done():
            if "hello" in frame:
                self._greeted.set_result(frame["hello"])
            else:
                self._greeted.set_exception(KeeperError(f"the keeper refused: {frame.get('refused')}"))
            return
        if self._early is not None:
            self._early.append(frame)
            return
        if "pong" in frame:
            self._watch.answered(frame["pong"], stalled=frame.get("stalled", False))
        words: dict[NodeId, list[RunnerWord]] = {}
        self._processes.hear(frame)
        for node_id, started in self._by_node(frame.get("started", ()), lambda each: each[0]):
            word = RunsStarted(started=tuple((LeaseId(lease), at_ms) for lease, at_ms in started))
            words.setdefault(node_id, []).append(word)
        for node_id, frozen in self._by_node(frame.get("frozen", ()), lambda each: each):
            words.setdefault(node_id, []).append(RunsFrozen(lease_ids=tuple(frozen)))
        for node_id, ended in self._by_node(frame.get("ended", ()), lambda each: each["lease"]):
            for each in ended:
                self._remains.note(each["lease"], each)
            told = [each for each in ended if not may_lack_memory(end_of(each))]
            words.setdefault(node_id, []).append(RunsEnded(ended=tuple(map(end_of, told))))
            if len(told) < len(ended):
                self._later(self._look_at_ends(node_id, [each for each in ended if each not in told]))
        for node_id, said in words.items():
            self._say(node_id, said)

    async def _look_at_ends(self, node_id: NodeId, entries: list[dict[str, Any]]) -> None:
        """The output may contain an out-of-memory error. A thread reads it; a dead disk only delays the end."""
        try:
            read = asyncio.to_thread(
                lambda: tuple(
                    read_end(
                        entry,
                        self._settings.output_dir,
                        is_worker=self._processes.is_worker(entry["lease"]),
                    )
                    for entry in entries
                )
            )
            ends = await asyncio.wait_for(read, _LOOK_SECONDS)
        except TimeoutError:
            ends = tuple(map(end_of, entries))
        self._say(node_id, [RunsEnded(ended=ends)])

    def _by_node(
        self, entries: Iterable[Any], lease_of: Callable[[Any], int]
    ) -> Iterable[tuple[NodeId, list[Any]]]:
        found: dict[NodeId, list[Any]] = {}
        for entry in entries:
            node_id = self._nodes.get(LeaseId(lease_of(entry)))
            if node_id is not None:
                found.setdefault(node_id, []).append(entry)
        return found.items()

    async def _on_hello(self, hello: dict[str, Any]) -> None:
        self._protocol = protocol_of(hello)
        self._keeper_id = hello["keeper"]
        self._keeper_pid = hello["pid"]
        self._processes.greet(hello["leases"])
        # In a thread: it looks at files of every lease and directory.
        known, stale = await asyncio.to_thread(
            lambda: (
                [known_run(record, self._settings.output_dir) for record in hello["leases"]],
                find_stale(Path(self._settings.output_dir), hello["leases"]),
            )
        )
        runs: dict[NodeId, list[KnownRun]] = {node_id: [] for node_id in self._node_ids}
        self.names_dirs = hello.get("names_dirs", False)
        for record, run in zip(hello["leases"], known, strict=True):
            self._dirs[run.lease_id] = run_dir_name(record["task"], record["attempt"])
            node_id = NodeId(record["node"])
            if node_id not in runs:
                _log.warning("lease_of_unknown_node", lease=record["lease"], node=node_id)
                continue
            self._nodes[run.lease_id] = node_id
            self._remains.note(record["lease"], record.get("end", {}))
            runs[node_id].append(run)
        self._remains.delete(stale)
        self._send({"agent": {"protocol": PROTOCOL}, "word": list(self._words.values())})
        for node_id, listed in runs.items():
            self._say(node_id, [RunsListed(runs=tuple(listed))])
        self._watch.connected(self._keeper_pid, self._protocol)
        self._retire_if_old()

    def _on_lost(self) -> None:
        self._link = None
        self._uploads.clear()
        self._users.clear()  # the next list of runs lacks these orders: they count as never started
        self._watch.lost()
        self._gone.set()
        if self._closing:
            return
        for node_id in self._node_ids:
            self._say(node_id, [RunnerLost()])
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(KeeperGoneError("the keeper hung up"))
            return
        _log.error("keeper_lost", pid=self._keeper_pid)
        self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        """A new keeper listens only when no process of the dead one is left."""
        while True:
            try:
                await self.open()
            except Exception as error:  # noqa: BLE001 - a node without a keeper must go on trying, whatever the cause
                _log.warning(
                    "keeper_not_started", error=str(error), exc_info=not isinstance(error, KeeperError)
                )
                self._watch.be_unfit(f"its keeper cannot be started: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                _log.info("keeper_started", pid=self._keeper_pid)
                return

    # -- is it fit?

    def _say_fitness(self, unfit: str) -> None:
        for node_id in self._node_ids:
            self._say(node_id, [RunnerFit(unfit=unfit)])

    def _say_words_again(self) -> None:
        """Sends the contacts that were withheld while the keeper did not answer."""
        self._send({"word": list(self._words.values())})

    def _retire_if_old(self) -> None:
        """An older keeper serves its tasks to their end; when none is left, a new keeper takes over."""
        if self._protocol >= PROTOCOL or self._nodes or self._link is None or self._closing:
            return
        _log.info("keeper_replaced", pid=self._keeper_pid, protocol=self._protocol)
        for node_id in self._node_ids:
            self._say(node_id, [RunnerLost()])  # new orders wait for the next keeper
        self._send({"shutdown": True})

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
