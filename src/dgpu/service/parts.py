"""The state of a scheduler and the parts that hold it: machine, runtime, views, follower process, keys of secrets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import sys
from collections.abc import AsyncIterator, Callable

import msgspec
import structlog

from dgpu.core.events import WallClockRead
from dgpu.core.state import ClusterState
from dgpu.journal.archive import Retention
from dgpu.journal.journal import Journal, Recovery
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.follower.link import FollowerLink
from dgpu.service.follower.words import FollowerSettings
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.quorum import Quorum
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.options import ServiceOptions
from dgpu.service.recovery.rescue import write_own_snapshot
from dgpu.service.recovery.start import Start
from dgpu.service.secrets.details import open_detail
from dgpu.service.secrets.vault import Vault
from dgpu.service.telemetry.recorder import record_for_ever
from dgpu.service.views.views import Views
from dgpu.wire.answers import instant
from dgpu.wire.wall_time import SHOWN

_HISTORY_LOOK_S = 1.0
# The journal thread gets its turn soon after an fsync. Shorter than a turn of a busy loop: if a turn ends earlier, the
# loop takes the interpreter back before the thread is awake, and the thread waits anew.
_SWITCH_INTERVAL_S = 0.0001

OnCommitted = Callable[[CommittedGroup], None]
_log = structlog.get_logger("dgpu.server")


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    state: ClusterState
    clock: Clock
    start: Start
    runtime: Runtime
    views: Views
    follower: FollowerLink
    vault: Vault


def tell_recovery(recovery: Recovery) -> None:
    for note in recovery.notes:
        _log.warning("recovery_note", detail=note)
    cut = recovery.cut
    if cut is not None:
        _log.warning(
            "journal_tail_cut", index=cut.index, file=cut.file, offset=cut.offset, kept_at=cut.kept_at
        )


def open_parts(
    options: ServiceOptions,
    start: Start,
    recovery: Recovery,
    journal: Journal,
    mark: AcknowledgedMark,
    on_committed: OnCommitted | None,
    quorum: Quorum | None = None,
) -> Parts:
    """Recovers the state. `journal` stores later groups: the local files, or an engine with a copy in them."""
    state = recovery.replayed()
    start.check(state, recovery.index, is_complete=quorum is None)
    views = Views(state, recovery.index)
    _settle_collector()
    vault = Vault.load(options.data_dir)
    clock = Clock(state.last_at, state.wall)
    SHOWN.follow(state.wall)
    scheduler = Scheduler(
        state,
        last_index=recovery.index,
        rules=options.rules,
        started_at=clock.now_ms(),
        full_pass_ms=options.schedule_interval_ms,
        opener=functools.partial(open_detail, vault),
        is_gated=quorum is not None,
    )
    views.progress_of = scheduler.progress.of
    runtime = Runtime(scheduler, journal, clock, mark, quorum)
    follower = FollowerLink(
        options.data_dir,
        _follower_settings(options),
        rescue=lambda: write_own_snapshot(runtime, options.data_dir),
    )
    runtime.on_snapshot_due = follower.snapshot_soon
    runtime.subscribe(lambda group: _follow_wall_clock(group, state, clock))
    runtime.subscribe(views.on_group)
    runtime.subscribe(lambda group: follower.notify(group.index))
    if on_committed is not None:
        runtime.subscribe(lambda group: on_committed(group) if runtime.leads else None)
    runtime.subscribe(lambda group: start.on_group(group, state))
    runtime.on_contradicted = start.hear
    return Parts(
        state=state,
        clock=clock,
        start=start,
        runtime=runtime,
        views=views,
        follower=follower,
        vault=vault,
    )


@contextlib.asynccontextmanager
async def followed(runtime: Runtime, follower: FollowerLink) -> AsyncIterator[None]:
    """The follower reports its progress. At the end the runtime stops first: it commits the rest."""
    looking = asyncio.create_task(_watch_history(follower, runtime))
    try:
        yield
    finally:
        looking.cancel()
        await runtime.stop()
        await follower.stop(final_snapshot=True)


@contextlib.asynccontextmanager
async def recorded(runtime: Runtime, follower: FollowerLink, *, fresh_ms: int) -> AsyncIterator[None]:
    """The follower gets samples of GPUs. Only the scheduler that agents talk to has any."""
    recording = asyncio.create_task(record_for_ever(runtime, follower, fresh_ms=fresh_ms))
    try:
        yield
    finally:
        recording.cancel()


async def _watch_history(follower: FollowerLink, runtime: Runtime) -> None:
    """Tasks that are in the history may leave the memory."""
    while True:
        await asyncio.sleep(_HISTORY_LOOK_S)
        runtime.history_advanced(follower.seen_at)
        runtime.hindrance = follower.trouble


def _follow_wall_clock(group: CommittedGroup, state: ClusterState, clock: Clock) -> None:
    for event in group.events:
        if isinstance(event, WallClockRead):
            SHOWN.follow(state.wall)
            shown, offset_ms = instant(event.at), event.span.wall_offset_ms
            if (jump := clock.recent_jump()) is None:
                _log.info("wall_clock_read", shown=shown, wall_offset_ms=offset_ms)
            else:
                seconds = jump.by_ms / 1000
                _log.warning("wall_clock_set", by_seconds=seconds, shown=shown, wall_offset_ms=offset_ms)


def _follower_settings(options: ServiceOptions) -> FollowerSettings:
    return FollowerSettings(
        snapshot_interval_ms=options.snapshot_interval_ms,
        retention=Retention(
            max_bytes=options.journal_retention_bytes, max_age_ms=options.journal_retention_ms
        ),
        telemetry_bytes=options.telemetry_retention_bytes,
        telemetry_age_ms=options.telemetry_retention_ms,
        audit=options.audit,
        results=options.results,
        digest_groups=0 if options.shared is None else options.shared.digest_groups,
    )


def _settle_collector() -> None:
    """The recovered state stays, so the collector need not walk it. Full collections run when no request waits."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 10_000)
    gc.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
