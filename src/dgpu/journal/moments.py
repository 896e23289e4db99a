"""States of the past: a kept state, and the groups after it up to a time."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.state import ClusterState
from dgpu.journal.archive import earliest_state, latest_state
from dgpu.journal.errors import JournalError
from dgpu.journal.journal import collector_off
from dgpu.journal.segments import Segment, StoredGroups, all_segments, chain, first_at
from dgpu.journal.snapshot import Snapshot


class TooEarly(JournalError):  # noqa: N818 - it says what happened
    """Nothing from this time is kept any more."""

    def __init__(self, earliest_at: int) -> None:
        super().__init__(f"the journal is kept from {earliest_at} on")
        self.earliest_at = earliest_at


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    state: ClusterState
    index: int  # of the last group in it


def moment_at(directory: Path, at: int, *, upto_index: int) -> Moment:
    """The state after the last group that begins at or before this time.

    Groups after `upto_index` may not be committed yet. Raises TooEarly, or another JournalError if files disappeared
    meanwhile: the next attempt finds their successors.
    """
    base = _base_before(directory, at, upto_index)
    state, index = base.state, base.index
    with collector_off():
        for group in StoredGroups(chain(directory, index)):
            if group.index > upto_index or group.events[0].at > at:
                break
            for event in group.events:
                apply(state, event)
            index = group.index
    return Moment(state=state, index=index)


def _base_before(directory: Path, at: int, upto_index: int) -> Snapshot:
    base = latest_state(directory, upto_index=_last_index_at(directory, at, upto_index))
    while base is not None and base.at > at:
        base = latest_state(directory, upto_index=base.index - 1)
    if base is None:
        raise TooEarly(earliest_state(directory).at)
    return base


def _last_index_at(directory: Path, at: int, upto_index: int) -> int:
    """At least the last group at this time, and at most a segment later: reading more segments than one is slow."""
    segments = all_segments(directory)
    later = segments[bisect_right(segments, at, key=_begins_at) :]
    return min(upto_index, later[0].first_index - 1) if later else upto_index


def _begins_at(segment: Segment) -> int:
    return first_at(segment) or 0
