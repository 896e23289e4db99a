"""The health of a GPU: a table of steps that can be read, and what is remembered of a card that has fallen ill.

              a cause                cause gone, time passed          check passed        good runs, or time
    TRUSTED ───────────► QUARANTINED ───────────────────────► PROBING ────────────► PAROLE ────────────────► TRUSTED
                          ▲   │  ▲                               │                    │
                          │   │  └────── check failed ───────────┘                    │
                          │   │  └────── a cause ─────────────────────────────────────┘
                          │   └─ too often, or the cause lasts ─► OUT ─ an operator's word ─► PROBING

QUARANTINED, PROBING and OUT cards are never given to a task and count as `error`. Cards on PAROLE are given only to
tasks below normal priority.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from dgpu.core.model.ids import GpuId, NodeId, TaskId


class Health(enum.StrEnum):
    TRUSTED = "trusted"
    QUARANTINED = "quarantined"
    PROBING = "probing"  # its agent was asked to check it
    PAROLE = "parole"
    OUT = "out"  # waits for a person


STEPS: Final[dict[Health, frozenset[Health]]] = {
    Health.TRUSTED: frozenset({Health.QUARANTINED}),
    Health.QUARANTINED: frozenset({Health.PROBING, Health.OUT}),
    Health.PROBING: frozenset({Health.PAROLE, Health.QUARANTINED}),
    Health.PAROLE: frozenset({Health.TRUSTED, Health.QUARANTINED}),
    Health.OUT: frozenset({Health.PROBING}),
}
SERVING: Final = frozenset({Health.TRUSTED, Health.PAROLE})


SEVERITIES: Final = {
    Health.QUARANTINED: "critical",
    Health.OUT: "critical",
}  # of the step there; "info" for any other


class Cause(enum.StrEnum):
    """Why a card left service. Agents send the names; one that is not known here counts as FAULT."""

    LOST = "lost"  # the driver, or the node's list, no longer has it
    XID = "xid"  # the driver logged a hardware error
    ECC = "ecc"  # memory errors that could not be corrected
    HOT = "hot"
    FAULT = "fault"  # anything else that the probe says
    STUCK = "stuck_memory"  # not given back yet by a task that has ended; a fault, but no illness
    FAILURES = "failures"  # different tasks failed on it, one after the other
    CHECK = "check"  # the check after a quarantine failed, or gave no answer


# These happen and are over; the others last until the probe no longer tells of them. An agent tells of the first kind
# until it is asked to check the card.
MOMENTARY: Final = frozenset({Cause.XID, Cause.ECC, Cause.FAILURES, Cause.CHECK})


class HealthRules(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    cool_down_ms: int = 30_000  # without its cause, before a card is checked
    give_up_ms: int = 3_600_000  # a cause that lasts longer needs a person
    check_timeout_ms: int = 120_000
    parole_runs: int = 3  # good runs that end a parole
    parole_ms: int = 600_000  # and the time that ends it without them
    failures_in_a_row: int = 3  # 0: failures of tasks never speak against a card
    most_quarantines: int = 3  # within the window; one more needs a person
    window_ms: int = 86_400_000


class Blame(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """A failure of a task that may be the card's: who failed, what it ran, when."""

    tenant_id: str
    program: str
    task_id: TaskId
    at: int


class GpuHealth(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Of a card that has a past. It is kept while the card is gone: one that comes back is not trusted for that."""

    gpu_id: GpuId
    node_id: NodeId
    state: Health = Health.TRUSTED
    since: int = 0  # of this state
    cause: str = ""  # why it left service
    evidence: str = ""
    remark: str = ""  # what led to this state
    clear_since: int = 0  # quarantined: when the probe last stopped telling of a fault; 0: it still does
    quarantines: int = 0  # within the window
    quarantined_at: int = 0
    checks: int = 0  # number of the last check: answers to older ones are stale
    good_runs: int = 0  # on parole
    blames: tuple[Blame, ...] = ()  # failures in a row, one per program

    @property
    def serves(self) -> bool:
        return self.state in SERVING


def cause_of(name: str) -> Cause:
    try:
        return Cause(name)
    except ValueError:
        return Cause.FAULT


def lasts(fault: str, cause: str) -> bool:
    """Is the card ill right now, or was it?"""
    return bool(fault) and cause_of(cause) not in MOMENTARY


def due_at(health: GpuHealth, rules: HealthRules) -> int | None:
    """When time alone takes the next step. The caller knows that the card is there and its node connected."""
    match health.state:
        case Health.QUARANTINED:
            if not health.clear_since:
                return health.since + rules.give_up_ms
            return max(health.since, health.clear_since) + rules.cool_down_ms
        case Health.PROBING:
            return health.since + rules.check_timeout_ms
        case Health.PAROLE:
            return health.since + rules.parole_ms
        case _:
            return None
