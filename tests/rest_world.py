"""A real scheduler with its REST service on a free port, in a thread; the journal is in memory, the nodes are told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from dgpu.core.apply.table import apply
from dgpu.core.commands import Command, RegisterNode, ReportFinished, ReportStarted, Tick
from dgpu.core.digest import digest
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.journal.memory import MemoryDisk, MemoryJournal
from dgpu.service.access.key_file import KEY_NAME, load_key
from dgpu.service.access.token_book import TokenBook, follow_tokens
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.alerts.outbox import SendingRules
from dgpu.service.alerts.watch import AlertWatch
from dgpu.service.content.store import ContentLimits, ContentStore
from dgpu.service.history.reader import HISTORY_NAME, History
from dgpu.service.history.writer import HistoryWriter
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.notices.reach import NoticeOptions, NoticeTargets
from dgpu.service.notices.watch import NoticeWatch
from dgpu.service.oidc.options import OidcOptions
from dgpu.service.oidc.sign_in import Oidc
from dgpu.service.open_files import HttpLimits
from dgpu.service.rest.access import Access
from dgpu.service.rest.app import create_app
from dgpu.service.rest.backend import RestOptions
from dgpu.service.rest.doors import Doors
from dgpu.service.rest.http_server import HttpServer
from dgpu.service.rest.turns import Turns
from dgpu.service.secrets.details import open_detail
from dgpu.service.secrets.vault import Vault
from dgpu.service.task_channels import ChannelStreams
from dgpu.service.task_files import FileStreams
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.streams import OutputStreams
from dgpu.service.views.views import Views
from dgpu.wire.isolation import Isolation
from dgpu.wire.proto import agent_pb2 as pb

T = TypeVar("T")
TOKEN = "test-token-of-more-than-thirty-two-characters"
NEVER_LOST = AgentRules(heartbeat_timeout_ms=10**9, task_lease_ms=10**9, lease_action="never")


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]
    raw: bytes
    cookies: tuple[str, ...] = ()


class InProcessFollower:
    """Fills the history as the follower does, when told to."""

    def __init__(self, path: Path) -> None:
        self._writer = HistoryWriter(path)
        self._state = ClusterState()
        self._waiting: list[CommittedGroup] = []
        self.paused = False
        self.seen_at = 0

    def on_group(self, group: CommittedGroup) -> None:
        self._waiting.append(group)
        if not self.paused:
            self.catch_up()

    def catch_up(self) -> None:
        for group in self._waiting:
            for position, event in enumerate(group.events):
                apply(self._state, event)
                self._writer.note(event, self._state, index=group.index, position=position)
                self.seen_at = event.at
            self._writer.commit(group.index)
        self._waiting = []


class Deaf:
    """The scheduler's end of a stream to an agent that obeys nothing."""

    unsent = connection_id = 0

    def send(self, message: pb.FromScheduler) -> None: ...

    def hang_up(self, reason: str, *, fault: bool) -> None: ...


class Listening(Deaf):
    def __init__(self) -> None:
        self.starts: list[pb.Start] = []

    def send(self, message: pb.FromScheduler) -> None:
        self.starts += message.orders.starts


class RestWorld:
    def __init__(
        self,
        folder: Path,
        *,
        settings: Settings | None = None,
        disk: MemoryDisk | None = None,
        access_mode: str = "loopback",
        options: RestOptions | None = None,
        follower: bool = True,
        alerts: AlertOptions | None = None,
        notices: NoticeOptions | None = None,
        limits: HttpLimits | None = None,
        oidc: Callable[[str], OidcOptions] | None = None,
        uploads: ContentLimits | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings or Settings()
        self.journal = MemoryJournal(disk)
        self.access_mode = access_mode
        self.options = options or RestOptions(
            version="test", isolation=Isolation(users="none"), is_open=access_mode == "none"
        )
        self.with_follower = follower
        self.alert_options = alerts
        self.notice_options = notices
        self.doors = Doors(limits)
        self.oidc_options = oidc  # of the address
        self.turns = Turns()
        self.files = FileStreams(ContentStore(folder / "content", uploads or ContentLimits()))
        self.channels = ChannelStreams()
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        if self.error:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            self.error = error
            self._ready.set()
            raise

    def _scheduler(self, last_index: int, clock: Clock) -> Scheduler:
        return Scheduler(
            self.state,
            last_index=last_index,
            rules=NEVER_LOST,
            started_at=clock.now_ms(),
            opener=functools.partial(open_detail, self.vault),
        )

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        recovery = self.journal.recover()
        self.state = recovery.replayed()
        clock = Clock()
        self.vault = Vault.load(self.folder)
        scheduler = self._scheduler(recovery.index, clock)
        self.runtime, self.views = Runtime(scheduler, self.journal, clock), Views(self.state, recovery.index)
        self.views.progress_of = scheduler.progress.of
        self.runtime.subscribe(self.views.on_group)
        if self.with_follower:
            self.follower = InProcessFollower(self.folder / HISTORY_NAME)
            self.runtime.subscribe(self.follower.on_group)
        self.history = History(self.folder / HISTORY_NAME)
        self.output = OutputStreams(LogStore(self.folder / "logs"), self.runtime)
        await self.runtime.start(Begin(settings=self.settings))
        tokens = await follow_tokens(self.runtime, load_key(self.folder / KEY_NAME))
        sock = self._open_door(tokens)
        self.alerts = await self._started_alerts(self.alert_options)
        self.notices = await self._started_notices(self.notice_options)
        app = create_app(
            self.runtime,
            self.views,
            self.history,
            self.output,
            self.access,
            self.options,
            alerts=self.alerts,
            files=self.files,
            channels=self.channels,
            doors=self.doors,
            turns=self.turns,
            vault=self.vault,
            notice_targets=None if self.notices is None else self.notices.targets,
        )
        server = HttpServer(app, self.doors, self.turns)
        await server.start(sock)
        self._ready.set()
        await self._stop.wait()
        await server.stop(0.2)
        if self.oidc is not None:
            await self.oidc.close()
        for watch in (self.alerts, self.notices):
            if watch is not None:
                await watch.stop()
        await self.runtime.stop()
        await self.output.close()

    async def _started_alerts(self, options: AlertOptions | None) -> AlertWatch | None:
        if options is None:
            return None
        watch = AlertWatch(options, self.runtime, self.folder, dict(self.state.alert_records))
        await watch.start()
        return watch

    async def _started_notices(self, options: NoticeOptions | None) -> NoticeWatch | None:
        if options is None:
            return None
        targets = NoticeTargets(options, self.vault)
        rules = SendingRules(retry_ms=50, attempts=100)
        watch = NoticeWatch(self.runtime, self.state, targets, rules, dict(self.state.alert_records))
        await watch.start()
        return watch

    def _open_door(self, tokens: TokenBook) -> socket.socket:
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.oidc = (
            Oidc(self.oidc_options(self.url), time.monotonic, time.time) if self.oidc_options else None
        )
        self.access = Access(
            mode=self.access_mode,  # type: ignore[arg-type]
            token=TOKEN,
            clock=time.monotonic,
            tokens=tokens,
            oidc=self.oidc,
        )
        return sock

    # from the test's thread

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def execute(self, command: Command) -> Any:
        async def do() -> Any:
            return await self.runtime.execute(command)

        result = self.run(do())
        assert not isinstance(result, Rejection), result
        return result

    def read(self, look: Callable[[ClusterState], T]) -> T:
        return self.run(self.runtime.read(look))

    def digest(self) -> str:
        """Of everything but the time of the last event: refused attempts are journaled, and change nothing else."""

        def look(state: ClusterState) -> str:
            last_at, state.last_at = state.last_at, 0
            try:
                return digest(state)
            finally:
                state.last_at = last_at

        return self.read(look)

    def add_node(
        self,
        name: str = "n1",
        gpus: int = 1,
        memory_mb: int = 32_768,
        model: str = "V100",
        labels: dict[str, str] | None = None,
    ) -> None:
        cards = tuple(
            Gpu(id=GpuId(f"GPU-{name}-{i}"), node_id=NodeId(name), index=i, model=model, memory_mb=memory_mb)
            for i in range(gpus)
        )
        self.execute(
            RegisterNode(
                node_id=NodeId(name),
                boot_id="boot",
                cpus_milli=64_000,
                ram_mb=262_144,
                gpus=cards,
                labels=labels or {},
            )
        )

    def connect_agent(self, name: str = "n1", stream: Deaf | None = None, *, holds: bool = True) -> str:
        """A session of a node that was added before, as an agent opens it. `holds`: it runs all its leases. Returns its
        id.
        """

        def register(state: ClusterState) -> pb.FromAgent:
            node = state.nodes[NodeId(name)]
            cards = [gpu for gpu in state.gpus.values() if gpu.node_id == name]
            return pb.FromAgent(
                register=pb.Register(
                    node_id=name,
                    boot_id=node.boot_id,
                    session_id=f"session-of-{name}",
                    cpus_milli=node.cpus_milli,
                    ram_mb=node.ram_mb,
                    gpus=[
                        pb.Gpu(uuid=gpu.id, index=gpu.index, model=gpu.model, memory_mb=gpu.memory_mb)
                        for gpu in cards
                    ],
                    leases=[
                        pb.HeldLease(lease_id=lease.id, task_id=lease.task_id, state=pb.HeldLease.RUNNING)
                        for lease in state.leases.values()
                        if holds and lease.node_id == name
                    ],
                )
            )

        async def connect() -> str:
            message = await self.runtime.read(register)
            ear = stream or Deaf()
            connection_id = ear.connection_id = self.runtime.connect_agent(ear)
            self.runtime.agent_said(connection_id, message)
            while not self.runtime.session_of(NodeId(name)):  # noqa: ASYNC110 - there is no event to wait on
                await asyncio.sleep(0.001)
            return self.runtime.session_of(NodeId(name))

        return self.run(connect())

    def finish_running(self, exit_code: int = 0, usage: AttemptUsage | None = None) -> int:
        leases = self.read(lambda state: list(state.leases))
        how = {"outcome": Outcome.EXITED, "exit_code": exit_code, "usage": usage}
        for lease_id in leases:
            self.execute(ReportStarted(lease_id=lease_id))
            self.execute(ReportFinished(lease_id=lease_id, **how))
        return len(leases)

    def pause_history(self) -> None:
        """It has all that was answered, and hears of nothing more."""
        self.read(lambda _: setattr(self.follower, "paused", True))

    def forget(self) -> None:
        """A tick with a history that has seen all."""
        seen_at = self.read(lambda _: self.follower.seen_at)  # an answer may come before the follower is told
        self.execute(Tick(history_at=seen_at))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        raw: bytes | None = None,
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Content-Type": "application/json"} if method in {"POST", "PUT", "PATCH"} else {}
        sent.update(headers or {})
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        with contextlib.closing(connection):
            connection.request(method, path, content, {k: v for k, v in sent.items() if v is not None})
            response = connection.getresponse()
            answer = response.read()
        told = {name.lower(): value for name, value in response.getheaders()}
        decoded = (
            json.loads(answer)
            if answer and "json" in told.get("content-type", "").replace("x-ndjson", "")
            else answer.decode("utf-8", "replace")
        )
        cookies = tuple(response.headers.get_all("set-cookie", ()))
        return Reply(response.status, decoded, told, answer, cookies)

    def submit(self, **task: Any) -> str:
        reply = self.ask("POST", "/api/v1/tasks", {"command": "true", **task})
        assert reply.status == 201, reply
        return str(reply.body["task_id"])
