"""Inputs and outputs of the leadership machine. Times are milliseconds of CLOCK_BOOTTIME."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from dgpu.journal.engine import Leader, Term


class Role(enum.Enum):
    FOLLOWING = "following"  # copies groups that others commit
    CAMPAIGNING = "campaigning"  # asked for the leader key
    CATCHING_UP = "catching up"  # holds the key, and reads groups of its predecessor
    LEADING = "leading"
    STEPPED_DOWN = (
        "stepped down"  # its memory may hold a group that was never committed: it must be discarded
    )


class Word(msgspec.Struct, frozen=True, kw_only=True):
    pass


# Inputs


class Open(Word, frozen=True, kw_only=True):
    """The local journal was read."""


class Followed(Word, frozen=True, kw_only=True):
    """Everything up to the head was read and applied. Head and leader were asked for at `asked_at_ms` or later."""

    asked_at_ms: int
    leader: Leader | None


class Woke(Word, frozen=True, kw_only=True):
    """The head may have moved, or the time of Wait is over."""


class Campaigned(Word, frozen=True, kw_only=True):
    term: Term | None  # None: another scheduler leads


class Renewed(Word, frozen=True, kw_only=True):
    """The lease was renewed, and a linearisable read afterwards showed our fence."""

    sent_at_ms: int


class Unavailable(Word, frozen=True, kw_only=True):
    """The engine did not answer to Follow, Campaign or Renew."""

    to: type[Output]


class CannotCopy(Word, frozen=True, kw_only=True):
    """The local disk has no room for the groups of others."""

    why: str


class StateDiffers(Word, frozen=True, kw_only=True):
    """The master has another state after the same groups."""

    why: str


class FenceGone(Word, frozen=True, kw_only=True):
    why: str


class Passed(Word, frozen=True, kw_only=True):
    """Time passed. Comes several times a second."""


Input: TypeAlias = (
    Open
    | Followed
    | Woke
    | Campaigned
    | Renewed
    | Unavailable
    | CannotCopy
    | StateDiffers
    | FenceGone
    | Passed
)


# Outputs


class Output(Word, frozen=True, kw_only=True):
    pass


class Follow(Output, frozen=True, kw_only=True):
    """Read head and leader, then all groups up to that head, and apply them. Then send Followed."""


class Wait(Output, frozen=True, kw_only=True):
    """Wait until the head may have moved, at most this long. Then send Woke."""

    timeout_ms: int
    is_pause: bool = False  # wait for the time, not for the engine


class Campaign(Output, frozen=True, kw_only=True):
    """Ask for the leader key. Then send Campaigned."""


class Renew(Output, frozen=True, kw_only=True):
    """Renew the lease, then read our fence. Then send Renewed."""

    term: Term


class BeginEpoch(Output, frozen=True, kw_only=True):
    """Everything is read: begin a new epoch and serve."""

    term: Term


class StepDown(Output, frozen=True, kw_only=True):
    """Send nothing more, and discard memory and views."""

    why: str
