"""The data of all dashboards: one picture of the cluster, updated once a second while a dashboard is connected.

A beat reads the state at a committed point and encodes the changes once for each audience: readers of the same tenants.
An audience without listeners costs nothing. Without any listener, nothing is computed except one point of the
ten-minute line every five seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dgpu.core.index.room import STATUSES
from dgpu.core.state import ClusterState
from dgpu.journal.journal import Room
from dgpu.service.access.audiences import Audiences
from dgpu.service.access.principal import Tenants
from dgpu.service.board import figures
from dgpu.service.board.columns import HEALTHS, NODE_STATUSES, Changes, Columns
from dgpu.service.board.figures import MAX_POINTS, STEP_MS, Traffic
from dgpu.service.board.pieces import Audience, Listener, Piece
from dgpu.service.loop.failures import NotMaster
from dgpu.service.loop.runtime import Runtime
from dgpu.service.views.views import Views
from dgpu.wire.alert_answers import AlertCounts
from dgpu.wire.board_answers import (
    BoardCounts,
    BoardDelta,
    BoardFigures,
    BoardPoint,
    BoardSnapshot,
    BoardUse,
    CountValue,
)
from dgpu.wire.wall_time import SHOWN

BEAT_MS = 1_000
QUIET_MS = 5_000  # a beat is sent after this time even without a change, to show that the stream is alive
USE_MS = 5_000  # how often pools and tenants are checked; while there are few, also after every change
FEW_TENANTS = 20

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("dgpu.board")


class Board:
    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        *,
        version: str = "",
        role: Callable[[], str] = lambda: "master",
        build: str = "",
        isolation: str = "",
    ) -> None:
        self.beats = 0
        self.lagged = 0  # resyncs that were needed since the start
        self.count_alerts: Callable[[Tenants], AlertCounts | None] = lambda _: None
        self._runtime = runtime
        self._views = views
        self._version, self._role, self._build = version, role, build
        self._isolation = isolation
        self._columns = Columns()
        self._traffic = Traffic(views)
        self._points: deque[BoardPoint] = deque(maxlen=MAX_POINTS)
        self._figures: BoardFigures | None = None  # with all tenants; None: no dashboard has connected yet
        self._audiences = Audiences(Audience, lambda audience: not audience.listeners)
        self.listeners = 0
        self._at_ms = self._use_at_ms = 0
        self._lock = asyncio.Lock()
        self._somebody = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(), name="board")

    def stop(self) -> None:
        """The state that it shows is given up, or the service ends."""
        self._running.cancel()

    # Calls of dashboards

    async def join(self, tenants: Tenants) -> tuple[Listener, Piece]:
        """A listener, and the whole picture, which comes first. Raises TooManyAudiences."""
        await self.refresh()
        # No await from here on: no beat can come between the picture and the first delta.
        audience = self._audiences.of(tenants)
        first = self._snapshot(audience)
        listener = Listener(audience, first)
        audience.listeners.add(listener)
        self.listeners += 1
        self._somebody.set()
        return listener, first

    def leave(self, listener: Listener) -> None:
        listener.audience.listeners.discard(listener)
        self.listeners -= 1
        if not self.listeners:
            self._somebody.clear()

    def take(self, listener: Listener) -> list[Piece]:
        """What the listener has not got yet; for one that was too slow, the whole picture."""
        if listener.lagged:
            self.lagged += 1
            snapshot = self._snapshot(listener.audience)
            listener.restart(snapshot)
            return [Piece(snapshot.seq, _event("resync", b'{"reason":"lagged"}')), snapshot]
        taken = list(listener.pieces)
        listener.pieces.clear()
        return taken

    async def picture(self, tenants: Tenants, *, packed: bool) -> bytes:
        """Only the JSON of a snapshot. Raises TooManyAudiences."""
        await self.refresh()
        audience = self._audiences.of(tenants)
        snapshot = self._snapshot(audience)
        plain = snapshot.plain[snapshot.plain.index(b"data: ") + 6 : -2]
        return audience.packed(snapshot, plain) if packed else plain

    async def refresh(self) -> None:
        """Afterwards the picture is at most one beat old."""
        if self._runtime.now_ms() - self._at_ms >= BEAT_MS or not self.beats:
            await self.beat()

    def _snapshot(self, audience: Audience) -> Piece:
        if audience.told is None:
            audience.told = self._figures_for(audience)
        if audience.snapshot is None or audience.snapshot.seq != audience.seq:
            body = _event("snapshot", _encode(self._picture(audience, audience.told)))
            audience.snapshot = Piece(audience.seq, body)
        return audience.snapshot

    # The beat

    async def _run(self) -> None:
        while True:
            try:
                if self.listeners:
                    due_ms = self._at_ms + BEAT_MS - self._runtime.now_ms()
                    await asyncio.sleep(max(10, min(due_ms, BEAT_MS)) / 1_000)
                    await self.refresh()
                else:
                    await self._wait_for_somebody()
                    await self._runtime.read(self._note_point)
            except NotMaster:
                await asyncio.sleep(STEP_MS / 1_000)  # until this board is stopped
            except Exception:  # noqa: BLE001 - a bug in one beat must not end the dashboards
                _log.exception("board_failed")
                await asyncio.sleep(STEP_MS / 1_000)

    async def _wait_for_somebody(self) -> None:
        try:
            async with asyncio.timeout(STEP_MS / 1_000):
                await self._somebody.wait()
        except TimeoutError:
            pass

    async def beat(self) -> None:
        async with self._lock:
            if self._runtime.now_ms() - self._at_ms < BEAT_MS and self.beats:
                return  # another caller has just done the same
            changes = await self._runtime.read(self._look)
            self.beats += 1
            for audience, delta in changes:
                audience.publish(self._snapshot(audience) if delta is None else _piece(delta))
                await asyncio.sleep(0)  # requests do not wait for the encodings of all audiences

    def _look(self, state: ClusterState) -> list[tuple[Audience, BoardDelta | None]]:
        """Called at a committed point. The audiences that get an event; without a delta, it is the whole picture."""
        self._at_ms = at_ms = self._runtime.now_ms()
        changes = self._columns.look(state, self._runtime.telemetry)
        point = self._note_point(state)
        self._figures = self._work_out(state, at_ms)
        self._audiences.drop_idle()
        told: list[tuple[Audience, BoardDelta | None]] = []
        for audience in self._audiences.all():
            before, audience.told = audience.told, self._figures_for(audience)
            delta = None
            if changes is not None and before is not None:
                delta = self._delta(audience, before, audience.told, changes, point)
                if delta.is_empty and at_ms - audience.sent_at_ms < QUIET_MS:
                    continue
            audience.seq += 1
            audience.sent_at_ms = at_ms
            told.append((audience, delta))
        return told

    def _delta(
        self,
        audience: Audience,
        before: BoardFigures,
        after: BoardFigures,
        changes: tuple[Changes, Changes],
        point: BoardPoint | None,
    ) -> BoardDelta:
        gpus, nodes = self._columns.changes_for(audience.tenants, *changes)
        changed, is_more = self._traffic.changed.of(audience.tenants)
        is_told = bool(changed) or is_more
        return BoardDelta(
            seq=audience.seq + 1,
            index=after.index,
            at_ms=SHOWN.wall_ms(self._at_ms),
            gpus=gpus or UNSET,
            nodes=nodes or UNSET,
            ready=_other(before.ready, after.ready),
            epoch=_other(before.epoch, after.epoch),
            counts=_other_counts(before.counts, after.counts) or UNSET,
            alerts=_other(before.alerts, after.alerts),
            pools=_other(before.pools, after.pools),
            quota=_other(before.quota, after.quota),
            tenants=_other(before.tenants, after.tenants),
            tenants_more=_other(before.tenants_more, after.tenants_more),
            point=UNSET if point is None else replace(point, at_ms=SHOWN.wall_ms(point.at_ms)),
            changed=changed if is_told else UNSET,
            changed_more=is_more if is_told else UNSET,
        )

    def _figures_for(self, audience: Audience) -> BoardFigures:
        if self._figures is None:
            raise RuntimeError("a beat came before the first picture")
        return figures.figures_for(self._figures, audience.tenants, self.count_alerts(audience.tenants))

    def _work_out(self, state: ClusterState, at_ms: int) -> BoardFigures:
        used: BoardUse | None = self._figures
        if used is None or not self._is_use_known(at_ms):
            self._use_at_ms = at_ms
            used = figures.use(state, max(state.last_at, at_ms))
        return BoardFigures(
            index=self._views.last_index,
            ready=self._runtime.ready and self._runtime.room is Room.OK and not self._runtime.trouble,
            epoch=state.epoch,
            counts=figures.counts(
                state,
                self._views,
                self._traffic,
                at_ms,
                util=figures.mean(self._columns.gpus.util),
                browsers=self.listeners,
            ),
            alerts=None,
            pools=used.pools,
            quota=used.quota,
            tenants=used.tenants,
            tenants_more=used.tenants_more,
        )

    def _is_use_known(self, at_ms: int) -> bool:
        known = self._figures
        if known is None or at_ms - self._use_at_ms >= USE_MS:
            return False
        return len(known.tenants) > FEW_TENANTS or known.index == self._views.last_index

    def _note_point(self, state: ClusterState) -> BoardPoint | None:
        """Every five seconds, with or without listeners."""
        at_ms = self._runtime.now_ms()
        is_due = not self._points or at_ms - self._points[-1].at_ms >= STEP_MS
        if not self.listeners and not is_due:
            return None
        self._traffic.look(state, at_ms)
        if not is_due:
            return None
        point = BoardPoint(
            at_ms=at_ms,
            util=figures.mean_util(self._runtime.telemetry.values()),
            waiting=state.waiting_count,
            running=state.running_count,
            wait_p50_ms=self._traffic.waits(at_ms)[0],
            finished_per_min=self._traffic.per_minute()[1],
        )
        self._points.append(point)
        if not self.listeners:  # no listener gets this change: the next one needs the whole picture
            self._audiences.drop_idle()
        return point

    # Encoding

    def _picture(self, audience: Audience, told: BoardFigures) -> BoardSnapshot:
        columns = self._columns
        return BoardSnapshot(
            seq=audience.seq,
            at_ms=SHOWN.wall_ms(self._at_ms),
            version=self._version,
            role=self._role(),
            build=self._build,
            isolation=self._isolation,
            statuses=[*STATUSES],
            node_statuses=[*NODE_STATUSES],
            healths=[*HEALTHS],
            models=columns.models,
            nodes=columns.nodes_for(audience.tenants),
            gpus=columns.gpus_for(audience.tenants),
            history=figures.history(self._points),
            **{name: getattr(told, name) for name in BoardFigures.__struct_fields__},
        )


def _piece(delta: BoardDelta) -> Piece:
    return Piece(delta.seq, _event("delta", _encode(delta)))


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _other(before: T, after: T) -> T | UnsetType:
    return UNSET if before == after else after


def _other_counts(before: BoardCounts, after: BoardCounts) -> dict[str, CountValue]:
    names = BoardCounts.__struct_fields__
    return {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}
