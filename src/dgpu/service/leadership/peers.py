"""The other schedulers and the members of the engine, as this scheduler sees them. For people and alerts, and to refuse
a name that is taken.

The rows are read in the background, so looking at them never waits for the engine. The time since a scheduler was last
seen is counted on our own clock, from the moment its row changed: clocks of machines may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from dgpu import __version__
from dgpu.journal.announced import Announced, MemberHealth, Row
from dgpu.journal.engine import EngineError
from dgpu.journal.etcd.roll import Roll
from dgpu.service.leadership.seen import ANNOUNCE_MS, MasterChange, SeenScheduler, with_one_master
from dgpu.service.loop.clock import ThisMachine
from dgpu.service.options import OptionsRefused, SharedOptions

if TYPE_CHECKING:
    from dgpu.service.leadership.standing import Standing
    from dgpu.service.loop.runtime import Runtime

FORGET_MS = 86_400_000
_TICK_S = 0.5
_LOOKS = round(1.5 * ANNOUNCE_MS / 1_000 / _TICK_S)  # for a taken name
_STOP_S = 1.0

_log = structlog.get_logger("dgpu.leadership")


class _Known(NamedTuple):
    row: Row
    changed_at_ms: int


class Peers:
    """Without a roll, only this scheduler is known."""

    def __init__(self, shared: SharedOptions, roll: Roll | None = None) -> None:
        self.members: tuple[MemberHealth, ...] = ()
        self._shared = shared
        self._roll = roll
        self._standing: Standing | None = None
        self._runtime: Runtime | None = None
        self._machine = ThisMachine()
        self._known: dict[str, _Known] = {}
        self._last_master = ""
        self._last_master_name = ""
        self._change: tuple[MasterChange, int] | None = None
        self._is_named = False  # the name is known to be free; only then it is announced
        self._announced: Announced | None = None
        self._announced_at_ms = 0

    def refuse_taken_name(self) -> None:
        """Once in the life of this process. Raises OptionsRefused, or EngineError. Blocks for a while if another
        scheduler with this name may have ended.

        A scheduler counts copies of output by name: two with one name would look like one that has everything.
        """
        if self._is_named:
            return
        before = self._namesakes()
        for _ in range(_LOOKS if before else 0):
            time.sleep(_TICK_S)
            for url, revision in self._namesakes().items():
                if before.setdefault(url, revision) != revision:
                    raise OptionsRefused(
                        f"ha.name: the scheduler at {url} runs and has the name {self._shared.name!r}, too. Give each "
                        f"scheduler its own name in scheduler.yaml (without ha.name: the host name)."
                    )
        self._is_named, self._announced = True, None

    def _namesakes(self) -> dict[str, int]:
        """Revisions by URL. Only a scheduler that runs changes its row."""
        rows = [] if self._roll is None else self._roll.schedulers()
        return {
            row.announced.http: row.revision
            for row in rows
            if row.announced.name == self._shared.name
            and row.announced.http != self._shared.http
            and row.announced.role != "stopped"
        }

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._run(), name="peers")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._say_goodbye()

    def speak_for(self, standing: Standing, runtime: Runtime) -> None:
        """Of the present life of this scheduler."""
        self._standing, self._runtime = standing, runtime

    def schedulers(self) -> list[SeenScheduler]:
        """By name; this scheduler as it is now."""
        own, now = self._own(), self._machine.since_boot_ms()
        others = [
            SeenScheduler(
                announced=known.row.announced, unseen_ms=max(0, now - known.changed_at_ms), is_me=False
            )
            for url, known in self._known.items()
            if url != own.http
        ]
        rows = [SeenScheduler(announced=own, unseen_ms=0, is_me=True), *others]
        return sorted(with_one_master(rows), key=lambda seen: (seen.announced.name, seen.announced.http))

    def other_urls(self) -> tuple[str, ...]:
        """Of the REST API. A scheduler that is stopped counts: it may lead again."""
        return tuple(sorted(url for url in self._known if url != self._shared.http))

    def on_leading(self, epoch: int) -> None:
        own = self._own()
        if self._last_master and self._last_master != own.http:
            change = MasterChange(before=self._last_master_name, after=own.name, epoch=epoch, ago_ms=0)
            self._change = (change, self._machine.since_boot_ms())
        self._last_master, self._last_master_name = own.http, own.name

    def master_change(self) -> MasterChange | None:
        """The last takeover of this process from another scheduler."""
        if self._change is None:
            return None
        change, at_ms = self._change
        return change._replace(ago_ms=self._machine.since_boot_ms() - at_ms)

    def _own(self) -> Announced:
        standing, runtime = self._standing, self._runtime
        return Announced(
            name=self._shared.name,
            http=self._shared.http,
            version=__version__,
            role="standby" if standing is None else standing.role,
            epoch=0 if runtime is None else runtime.epoch,
            index=0 if runtime is None else runtime.committed_index,
            lag_ms=None if standing is None else standing.lag_ms(),
            wall_ms=self._machine.wall_ms(),
        )

    async def _run(self) -> None:
        while True:
            own, now = self._own(), self._machine.since_boot_ms()
            if self._is_news(own) or now - self._announced_at_ms >= ANNOUNCE_MS:
                self._announced, self._announced_at_ms = own, now
                try:
                    await asyncio.to_thread(self._exchange, own)
                except Exception:  # noqa: BLE001 - a bug here must not end the watch
                    _log.exception("peers_look_failed")
            await asyncio.sleep(_TICK_S)

    def _is_news(self, own: Announced) -> bool:
        told = self._announced
        return told is None or (told.role, told.epoch) != (own.role, own.epoch)

    def _exchange(self, own: Announced) -> None:
        if self._roll is None:
            return
        self.members = self._roll.members()
        try:
            if self._is_named:
                self._roll.announce(own)
            rows = self._roll.schedulers()
        except EngineError:
            return  # the state of the members shows it; the rows grow old
        self._note(rows)

    def _note(self, rows: list[Row]) -> None:
        now, wall = self._machine.since_boot_ms(), self._machine.wall_ms()
        known = {}
        for row in rows:
            url = row.announced.http
            before = self._known.get(url)
            if before is None:
                # The only case in which its wall clock counts: nothing else tells the age of the row.
                changed_at = now - max(0, wall - row.announced.wall_ms)
            else:
                changed_at = before.changed_at_ms if before.row.revision == row.revision else now
            if before is not None and now - changed_at > FORGET_MS and self._roll is not None:
                with contextlib.suppress(EngineError):
                    self._roll.forget(row)
                continue
            known[url] = _Known(row, changed_at)
        self._known = known
        masters = [row.announced for row in rows if row.announced.role == "master"]
        if masters:
            latest = max(masters, key=lambda each: each.epoch)
            self._last_master, self._last_master_name = latest.http, latest.name

    async def _say_goodbye(self) -> None:
        if self._roll is None:
            return
        if self._is_named:
            row = msgspec.structs.replace(self._own(), role="stopped")
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await asyncio.to_thread(self._roll.announce, row)
        self._roll.close()
