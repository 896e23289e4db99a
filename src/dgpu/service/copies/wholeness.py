"""Remembers whether this scheduler may lack output that nodes have already deleted.

A scheduler that takes over lacks none if it led before, or if it was in contact with the last master shortly before
that one stopped. Otherwise there is a gap: a time in which nodes may have given output to another scheduler alone.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from dgpu.journal.durable import write_file
from dgpu.service.copies.release import LONE_AFTER_S

OUTPUT_FOLDER = "logs"
FILE_NAME = "copied.json"
_SAFE_MS = int(LONE_AFTER_S * 500)  # half of it: the master counts from when it heard us, on its own clock
_LATE_MS = 600_000  # a node may send the output of a run some time after its end
_MAX_GAPS = 16
_SAVE_EVERY_MS = 10_000

_log = structlog.get_logger("dgpu.output")


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """Times of the journal."""

    begin: int
    end: int


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    led_epoch: int = 0  # the last epoch that this scheduler began
    compared_at: int = 0  # when it last had everything of the master
    gaps: tuple[Gap, ...] = ()


class Wholeness:
    """Times are counted milliseconds of the journal. Writing a file of a hundred bytes is left to the caller's turn."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._saved_at = 0
        try:
            self._known = msgspec.json.decode(self._path.read_bytes(), type=_Known)
        except (OSError, msgspec.MsgspecError):
            self._known = _Known()

    def on_compared(self, now: int) -> None:
        """All output of the master is here."""
        self._known = msgspec.structs.replace(self._known, compared_at=max(now, self._known.compared_at))
        if now - self._saved_at >= _SAVE_EVERY_MS:
            self._save(now)

    def on_lead(self, *, epoch_before: int, last_at: int, epoch: int) -> None:
        """`last_at`: the time of the last group of the epoch before."""
        known = self._known
        gaps = known.gaps
        is_sure = epoch_before in {0, known.led_epoch} or last_at - known.compared_at < _SAFE_MS
        if not is_sure:
            gaps = (*gaps, Gap(known.compared_at, last_at))[-_MAX_GAPS:]
            _log.warning("output_may_be_missing", since=known.compared_at, until=last_at)
        self._known = msgspec.structs.replace(known, led_epoch=epoch, gaps=gaps)
        self._save(last_at)

    def on_founded(self, epoch: int) -> None:
        """Call it for a scheduler that was alone until now: it has all output up to this epoch."""
        if self._known.led_epoch < epoch:
            self._known = msgspec.structs.replace(self._known, led_epoch=epoch)
            self._save(self._saved_at)

    def on_filled(self) -> None:
        """Another scheduler has offered everything it has."""
        if self._known.gaps:
            self._known = msgspec.structs.replace(self._known, gaps=())
            self._save(self._saved_at)

    def is_doubtful(self, ended_at: int) -> bool:
        """Output of a run that ended at this time may be on another scheduler only."""
        return any(gap.begin - _LATE_MS <= ended_at <= gap.end for gap in self._known.gaps)

    def _save(self, now: int) -> None:
        self._saved_at = now
        try:
            write_file(self._path, msgspec.json.encode(self._known))
        except OSError as error:
            _log.warning("copied_not_saved", error=error.strerror)
