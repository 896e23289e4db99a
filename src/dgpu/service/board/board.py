"""The data of all dashboards: one picture of the cluster, updated once a second while a dashboard is connected.

A beat reads the state at a committed point and encodes the changes once for all listeners. Without a listener, nothing
is computed except one point of the ten-minute line every five seconds.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
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
from dgpu.service.board import figures
from dgpu.service.board.columns import HEALTHS, NODE_STATUSES, Columns
from dgpu.service.board.figures import MAX_POINTS, STEP_MS, Traffic
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
_PACKING_LEVEL = 4

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("dgpu.board")


class Piece:
    """One event of the stream, encoded once, and compressed once if a client wants that.

    Compressed pieces may follow each other in the gzip stream of any client: each has its own compressor and ends at a
    byte boundary, so it refers to no earlier data.
    """

    __slots__ = ("_packed", "plain", "seq")

    def __init__(self, seq: int, plain: bytes) -> None:
        self.seq = seq
        self.plain = plain
        self._packed = b""

    @property
    def packed(self) -> bytes:
        if not self._packed:
            self._packed = pack(self.plain)
        return self._packed


PACKED_BEGIN = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # the head of a gzip stream


def pack(plain: bytes) -> bytes:
    packer = zlib.compressobj(_PACKING_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)


class Listener:
    """One dashboard. Unread events are dropped after a while, and the dashboard gets a resync instead."""

    MAX_UNREAD = 16

    __slots__ = ("arrived", "lagged", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.lagged = False
        self.arrived = asyncio.Event()

    def offer(self, piece: Piece) -> None:
        if self.lagged or len(self.pieces) >= self.MAX_UNREAD:
            self.pieces.clear()
            self.lagged = True
        else:
            self.pieces.append(piece)
        self.arrived.set()

    def take(self, board: Board) -> list[Piece]:
        if self.lagged:
            self.lagged = False
            return board.resync()
        taken = list(self.pieces)
        self.pieces.clear()
        return taken


class Board:
    def __init__(
        self, runtime: Runtime, views: Views, *, version: str = "", role: str = "master", build: str = ""
    ) -> None:
        self.seq = 0
        self.beats = 0
        self.lagged = 0  # resyncs that were needed since the start
        self.count_alerts: Callable[[], AlertCounts | None] = lambda: None
        self._runtime = runtime
        self._views = views
        self._version, self._role, self._build = version, role, build
        self._columns = Columns()
        self._traffic = Traffic(views)
        self._points: deque[BoardPoint] = deque(maxlen=MAX_POINTS)
        self._figures: BoardFigures | None = None  # None: no dashboard has connected yet
        self._listeners: set[Listener] = set()
        self._snapshot: Piece | None = None
        self._packed_picture: tuple[Piece, bytes] | None = None
        self._at_ms = self._sent_at_ms = self._use_at_ms = 0
        self._lock = asyncio.Lock()
        self._somebody = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(), name="board")

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    # Calls of dashboards

    async def join(self) -> tuple[Listener, Piece]:
        """A listener, and the whole picture, which comes first."""
        listener = Listener()
        await self.refresh()
        # No await from here on: no beat can come between the picture and the first delta.
        self._listeners.add(listener)
        self._somebody.set()
        return listener, self.snapshot()

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._somebody.clear()

    async def refresh(self) -> None:
        """Afterwards the picture is at most one beat old."""
        if self._runtime.now_ms() - self._at_ms >= BEAT_MS or not self.seq:
            await self.beat()

    def snapshot(self) -> Piece:
        if self._snapshot is None or self._snapshot.seq != self.seq:
            body = self._event("snapshot", _encode(self._picture()))
            self._snapshot = Piece(self.seq, body)
        return self._snapshot

    def picture(self) -> bytes:
        """Only the JSON of the snapshot."""
        plain = self.snapshot().plain
        return plain[plain.index(b"data: ") + 6 : -2]

    def picture_packed(self) -> bytes:
        if self._packed_picture is None or self._packed_picture[0] is not self.snapshot():
            self._packed_picture = (self.snapshot(), gzip.compress(self.picture(), _PACKING_LEVEL, mtime=0))
        return self._packed_picture[1]

    def resync(self) -> list[Piece]:
        """For a listener that was too slow."""
        self.lagged += 1
        told = b'event: resync\ndata: {"reason":"lagged"}\n\n'
        return [Piece(self.seq, told), self.snapshot()]

    # The beat

    async def _run(self) -> None:
        while True:
            try:
                if self._listeners:
                    due_ms = self._at_ms + BEAT_MS - self._runtime.now_ms()
                    await asyncio.sleep(max(10, min(due_ms, BEAT_MS)) / 1_000)
                    await self.refresh()
                else:
                    await self._wait_for_somebody()
                    await self._runtime.read(self._note_point)
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
            if self._runtime.now_ms() - self._at_ms < BEAT_MS and self.seq:
                return  # another caller has just done the same
            self.beats += 1
            delta = await self._runtime.read(self._look)
            if delta is None:
                self.seq += 1
                self._publish(self.snapshot())
            elif not delta.is_empty or self._at_ms - self._sent_at_ms >= QUIET_MS:
                self.seq = delta.seq
                self._publish(Piece(self.seq, self._event("delta", _encode(delta))))

    def _publish(self, piece: Piece) -> None:
        self._sent_at_ms = self._at_ms
        for listener in self._listeners:
            listener.offer(piece)

    def _look(self, state: ClusterState) -> BoardDelta | None:
        """Called at a committed point. None: there was no earlier check, or the set of nodes or GPUs changed."""
        self._at_ms = at_ms = self._runtime.now_ms()
        changes = self._columns.look(state, self._runtime.telemetry)
        point = self._note_point(state)
        before, after = self._figures, self._work_out(state, at_ms)
        self._figures = after
        if changes is None or before is None:
            return None
        gpus, nodes = changes
        traffic = self._traffic
        is_told = bool(traffic.changed) or traffic.changed_more
        return BoardDelta(
            seq=self.seq + 1,
            index=after.index,
            at_ms=SHOWN.wall_ms(at_ms),
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
            changed=list(traffic.changed) if is_told else UNSET,
            changed_more=traffic.changed_more if is_told else UNSET,
        )

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
                browsers=len(self._listeners),
            ),
            alerts=self.count_alerts(),
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
        if not self._listeners and not is_due:
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
        if not self._listeners:  # no listener gets this change: the next one needs the whole picture
            self._snapshot = None
        return point

    # Encoding

    def _picture(self) -> BoardSnapshot:
        columns, told = self._columns, self._figures
        if told is None:
            raise RuntimeError("a beat came before the first picture")
        return BoardSnapshot(
            seq=self.seq,
            at_ms=SHOWN.wall_ms(self._at_ms),
            version=self._version,
            role=self._role,
            build=self._build,
            statuses=[*STATUSES],
            node_statuses=[*NODE_STATUSES],
            healths=[*HEALTHS],
            models=columns.models,
            nodes=columns.nodes,
            gpus=columns.gpus,
            history=figures.history(self._points),
            **{name: getattr(told, name) for name in BoardFigures.__struct_fields__},
        )

    def _event(self, kind: str, data: bytes) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _other(before: T, after: T) -> T | UnsetType:
    return UNSET if before == after else after


def _other_counts(before: BoardCounts, after: BoardCounts) -> dict[str, CountValue]:
    names = BoardCounts.__struct_fields__
    return {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}
