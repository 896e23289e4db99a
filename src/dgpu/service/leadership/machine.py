"""Who leads: one scheduler's part in it, as a machine without I/O.

A standby follows the journal. When it has everything and sees no leader, it asks the engine for the leader key. With
the key it reads to the head again, because its predecessor may have committed until it lost the key, and begins an
epoch. From then on each commit compares the fence, and all other effects wait for a confirmation (machine/gate.py).

The clock is the second line of defence: effects stop one margin before the lease can end, counted from the moment when
the last confirmed renewal was sent. A renewal alone proves nothing, because an etcd leader that was deposed still
answers it. So it counts once a linearisable read after it has shown our fence. When effects stop, the scheduler still
leads, until the engine says otherwise: while no majority answers, no other scheduler can win the key either.
"""

from __future__ import annotations

import msgspec

from dgpu.journal.engine import Leader, Term
from dgpu.service.leadership.words import (
    BeginEpoch,
    Campaign,
    Campaigned,
    CannotCopy,
    FenceGone,
    Follow,
    Followed,
    Input,
    Open,
    Output,
    Passed,
    Renew,
    Renewed,
    Role,
    StateDiffers,
    StepDown,
    Unavailable,
    Wait,
    Woke,
)


class LeadershipRules(msgspec.Struct, frozen=True, kw_only=True):
    renew_ms: int = 1_000
    margin_ms: int = 1_000  # drift of clocks, and the time that an effect takes to leave
    follow_ms: int = 1_000  # how long a standby waits for a hint
    retry_ms: int = 250  # between attempts to reach the engine


class Leadership:
    def __init__(self, rules: LeadershipRules | None = None) -> None:
        self.role = Role.FOLLOWING
        self.term: Term | None = None
        self.leader: Leader | None = None  # as seen last
        self.unfit = ""  # why this scheduler must not lead; empty: it may
        self.copy_trouble = ""  # why groups of others cannot be copied; empty: they can
        self.fresh_at_ms: int | None = None  # at this time, everything that was committed is in our state
        self.silent_since_ms: int | None = None  # the engine does not answer; None: it does
        self._rules = rules or LeadershipRules()
        self._acts_until_ms = 0
        self._is_renewing = False
        self._is_fenced = False
        self._renewed_at_ms = 0

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADING

    @property
    def has_key(self) -> bool:
        """As far as known: it was won, and no call has shown its loss."""
        return self.term is not None and not self._is_fenced

    def may_act(self, now_ms: int) -> bool:
        """Whether effects may leave now. No: they wait for the next renewal."""
        return self.role in {Role.CATCHING_UP, Role.LEADING} and now_ms < self._acts_until_ms

    def on_input(self, value: Input, now_ms: int) -> list[Output]:
        if self.role is Role.STEPPED_DOWN:
            return []
        self._note_silence(value, now_ms)
        match value:
            case Open() | Woke():
                return [Follow()] if self.role is Role.FOLLOWING else []
            case Followed():
                return self._on_followed(value, now_ms)
            case Campaigned():
                return self._on_campaigned(value.term, now_ms)
            case Renewed():
                self._is_renewing = False
                self._extend(value.sent_at_ms)
                return []
            case Unavailable():
                return self._on_unavailable(value.to)
            case CannotCopy():
                return self._on_cannot_copy(value.why)
            case StateDiffers():
                self.unfit = self.unfit or value.why
                return []
            case FenceGone():
                self._is_fenced = True
                return self._step_down(value.why)
            case Passed():
                return self._renew(now_ms)

    def _on_followed(self, value: Followed, now_ms: int) -> list[Output]:
        self.fresh_at_ms = value.asked_at_ms
        self.leader = value.leader
        self.copy_trouble = ""
        if self.role is Role.FOLLOWING:
            if value.leader is not None or self.unfit:
                return [Wait(timeout_ms=self._rules.follow_ms)]
            self.role = Role.CAMPAIGNING
            return [Campaign()]
        if self.role is not Role.CATCHING_UP or self.term is None:
            return []
        if value.leader is None or value.leader.fence != self.term.fence:
            return self._step_down("the leader key was lost before the journal was read")
        self.role = Role.LEADING
        return [BeginEpoch(term=self.term), *self._renew(now_ms)]

    def _on_campaigned(self, term: Term | None, now_ms: int) -> list[Output]:
        if term is None:
            self.role = Role.FOLLOWING
            return [Wait(timeout_ms=self._rules.retry_ms, is_pause=True)]
        self.role = Role.CATCHING_UP
        self.term = term
        self._renewed_at_ms = now_ms
        self._extend(term.granted_at_ms)  # the key was created by a majority after the lease was granted
        # Groups read before the key was won are not all: the predecessor could still commit.
        return [Follow()]

    def _on_unavailable(self, to: type[Output]) -> list[Output]:
        if to is Renew:
            self._is_renewing = False
            return []
        if self.role is Role.CATCHING_UP:
            return [Follow()]
        # The key may have been created. Then nobody renews its lease, and it disappears.
        self.role = Role.FOLLOWING
        return [Wait(timeout_ms=self._rules.retry_ms, is_pause=True)]

    def _on_cannot_copy(self, why: str) -> list[Output]:
        """A standby waits for room. With the leader key it steps down, so that another scheduler may lead."""
        self.copy_trouble = why
        if self.role is Role.FOLLOWING:
            return [Wait(timeout_ms=self._rules.follow_ms, is_pause=True)]
        return self._step_down(why)

    def _renew(self, now_ms: int) -> list[Output]:
        if self.term is None or self._is_renewing or now_ms - self._renewed_at_ms < self._rules.renew_ms:
            return []
        self._is_renewing = True
        self._renewed_at_ms = now_ms
        return [Renew(term=self.term)]

    def _extend(self, sent_at_ms: int) -> None:
        if self.term is not None:
            self._acts_until_ms = sent_at_ms + self.term.ttl_ms - self._rules.margin_ms
            self.fresh_at_ms = sent_at_ms

    def _step_down(self, why: str) -> list[Output]:
        self.role = Role.STEPPED_DOWN
        return [StepDown(why=why)]

    def _note_silence(self, value: Input, now_ms: int) -> None:
        if isinstance(value, Unavailable):
            if self.silent_since_ms is None:
                self.silent_since_ms = now_ms
        elif isinstance(value, Followed | Campaigned | Renewed):
            self.silent_since_ms = None
