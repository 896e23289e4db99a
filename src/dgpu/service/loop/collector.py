"""The garbage collector of the scheduler: full collections run during pauses in writing if possible, and stay short.

A full collection walks every object that is not frozen: 130 ms with 100,000 tasks. So each collection freezes all
remaining objects, and the next one walks only new objects. A frozen object that becomes part of an unreachable cycle
would stay forever, so all objects are thawed from time to time.

A closed connection is such a cycle. A scheduler that writes without a pause also collects, after some minutes.
"""

from __future__ import annotations

import gc

_IDLE_BEATS = 5
_BUSY_BEATS = 300
_TIDIES_BEFORE_THAWING = 20
_GROWTH_BEFORE_THAWING = 1.25


class Collector:
    def __init__(self) -> None:
        self._idle_beats = 0
        self._busy_beats = 0  # since the last collection
        self._is_tidy = False
        self._tidies = 0
        self._frozen = gc.get_freeze_count()  # after the last full thaw

    def on_append(self) -> None:
        self._idle_beats = 0
        self._is_tidy = False

    def on_beat(self) -> None:
        """Called every second."""
        self._idle_beats += 1
        self._busy_beats += 1
        is_idle = self._idle_beats >= _IDLE_BEATS
        if not self._is_tidy and (is_idle or self._busy_beats >= _BUSY_BEATS):
            self.tidy()
            self._is_tidy = is_idle
            self._busy_beats = 0

    def tidy(self) -> None:
        self._tidies += 1
        is_due = self._tidies % _TIDIES_BEFORE_THAWING == 0
        is_due = is_due or gc.get_freeze_count() > self._frozen * _GROWTH_BEFORE_THAWING
        if is_due:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if is_due:
            self._frozen = gc.get_freeze_count()
