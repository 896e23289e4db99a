"""The parts of the service that the calls use, in one place."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgpu.core.commands import Command
from dgpu.core.events import Event
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import WorkerSetup
from dgpu.core.rejections import Rejection
from dgpu.service.access.audiences import MAX_AUDIENCES
from dgpu.service.access.principal import Principal, Tenants
from dgpu.service.access.token_book import TokenBook
from dgpu.service.alerts.watch import AlertWatch
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.board.board import Board
from dgpu.service.follower.link import FollowerLink
from dgpu.service.history.reader import History
from dgpu.service.leadership.standing import Lone, Standing
from dgpu.service.looking_back.link import LookingBack
from dgpu.service.loop.answers import Answer
from dgpu.service.loop.runtime import Runtime
from dgpu.service.notices.reach import NoticeTargets
from dgpu.service.rest.access import user_name
from dgpu.service.rest.attempt import CURRENT
from dgpu.service.rest.channel_offers import Offers
from dgpu.service.rest.doors import Doors, Guest
from dgpu.service.rest.feed import EventFeed
from dgpu.service.rest.open_streams import OpenStream, OpenStreams
from dgpu.service.rest.pages import BUNDLE, build_of
from dgpu.service.rest.scrape import Scrapes
from dgpu.service.rest.turns import Turns
from dgpu.service.rest.turnstile import Turnstile, lane_of
from dgpu.service.results.results import Results
from dgpu.service.secrets.details import seal_env
from dgpu.service.secrets.vault import Vault
from dgpu.service.task_channels import ChannelStreams
from dgpu.service.task_files import FileStreams
from dgpu.service.task_output.streams import OutputStreams
from dgpu.service.views.views import Views
from dgpu.wire.alert_answers import AlertCounts
from dgpu.wire.answers import Problem
from dgpu.wire.isolation import OPEN, Isolation
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import SealEnv

if TYPE_CHECKING:
    from dgpu.service.proxy.app import Proxy
    from dgpu.service.rest.past import Past


class RestOptions(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    standing: Standing = Lone()
    heartbeat_seconds: float = 15.0
    max_streams: int = 1_000  # followers of logs, events and the board together
    pages_dir: Path | None = None  # None: the dashboard that was built into the package
    journal_dir: Path | None = None  # None: old records cannot be read again
    isolation: Isolation = Isolation()
    is_open: bool = False  # auth.mode is none
    max_grace_ms: int = 300_000
    worker_setup: WorkerSetup = WorkerSetup(app_id="")  # the operator's settings for workers

    @property
    def role(self) -> str:
        return self.standing.role

    @property
    def boundary(self) -> str:
        """For views: the boundary between users."""
        return OPEN if self.is_open else self.isolation.word


class ProblemError(Exception):
    """A problem as an answer, raised to the place where answers are written."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers or {}


# By task and memory: when it was computed, and by how many seconds a new task would start earlier (None: not known).
EarlierStarts = OrderedDict[tuple[TaskId, int], tuple[int, float | None]]


class Backend:
    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        history: History,
        output: OutputStreams,
        options: RestOptions,
        follower: FollowerLink | None = None,
        files: FileStreams | None = None,
        doors: Doors | None = None,
        turns: Turns | None = None,
        tokens: TokenBook | None = None,
        vault: Vault | None = None,
        trail: AuditTrail | None = None,
        channels: ChannelStreams | None = None,
    ) -> None:
        self.runtime, self.views = runtime, views
        self.history, self.output = history, output
        self.files = files or FileStreams()
        self.channels, self.offers = channels or ChannelStreams(), Offers()
        self.options = options
        self.follower = follower  # None: no forecasts
        self.doors = Doors() if doors is None else doors
        self.turns, self.turnstile = Turns() if turns is None else turns, Turnstile()
        self.tokens = tokens  # None: a world without API tokens
        self.owners = frozenset(map(user_name, (0, os.getuid())))  # they need no token
        self.vault = vault  # None: a world without secrets
        self.earlier_starts = EarlierStarts()
        self.arrivals, self.is_rotating = 0, False  # uploads under way; the key of the vault
        self.seal_env: SealEnv = None if vault is None else functools.partial(seal_env, vault)
        self.trail = AuditTrail(runtime) if trail is None else trail
        self.feed, self.results = EventFeed(views), Results(runtime)
        # None: a world without alerts, messages about tasks, or a proxy for ports of tasks
        self.alerts: AlertWatch | None = None
        self.notice_targets: NoticeTargets | None = None
        self.proxy: Proxy | None = None
        self.board = Board(
            runtime,
            views,
            version=options.version,
            role=lambda: options.role,
            build=build_of(options.pages_dir or BUNDLE),
            isolation=options.boundary,
        )
        self.board.count_alerts = self._count_alerts
        self.scrapes, self.streams = Scrapes(self), OpenStreams()
        self.past: Past | None = None  # opened at the first request
        self.looking_back = None if options.journal_dir is None else LookingBack(options.journal_dir)
        self._describe: Callable[[], dict[str, Any]] | None = None
        self._description: dict[str, Any] = {}

    def _count_alerts(self, tenants: Tenants) -> AlertCounts | None:
        alerts = getattr(self, "alerts", None)
        return None if alerts is None else alerts.counts(tenants)

    def watch_alerts(self, alerts: AlertWatch) -> None:
        self.alerts = alerts
        alerts.listen(self.feed.publish)

    def stop(self) -> None:
        self.board.stop()
        self.results.close()

    def describe_with(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._describe = describe

    def description(self) -> dict[str, Any]:
        """Built at the first request, so that the start does not wait for it."""
        if not self._description and self._describe is not None:
            self._description = self._describe()
        return self._description

    async def execute(self, command: Command) -> Answer:
        """The answer to a command of a request. If it is accepted, the request's audit entry is one of its events."""
        attempt = CURRENT.get()
        if attempt is None:
            return await self.runtime.execute(command)
        result = await self.runtime.execute(msgspec.structs.replace(command, audit=attempt.entry()))
        if not isinstance(result, Rejection):
            attempt.is_recorded = True
        return result

    async def do(self, command: Command) -> tuple[Event, ...]:
        """The events of a command; a refusal is raised as its problem."""
        result = await self.execute(command)
        if isinstance(result, Rejection):
            raise ProblemError(problem_of(result))
        return result

    def open_stream(self, who: Principal, guest: Guest | None) -> OpenStream:
        count, own = self.streams.count, self.streams.count_of(lane_of(who))
        # A tenant may open as many as it leaves free, so that others always find one.
        if own >= self.options.max_streams - count:
            detail = (
                f"{count} streams of logs and events are already open, {own} of them yours. Try again later."
            )
            problem = Problem(
                status=503,
                code="too_many_streams",
                title="Too many streams",
                detail=detail,
                facts={"count": count, "own": own},
            )
            raise ProblemError(problem, {"retry-after": "5"})
        return self.streams.add(who, guest)


def too_many_audiences() -> ProblemError:
    detail = f"Readers of {MAX_AUDIENCES} different sets of tenants watch already. Try again later."
    problem = Problem(
        status=503,
        code="too_many_audiences",
        title="Too many audiences",
        detail=detail,
        facts={"limit": MAX_AUDIENCES},
    )
    return ProblemError(problem, {"retry-after": "5"})
