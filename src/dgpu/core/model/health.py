"""The health of a GPU: a table of its steps, and the record of a GPU that was quarantined.

              a cause                cause gone, time passed          check passed        good runs, or time
    TRUSTED ───────────► QUARANTINED ───────────────────────► PROBING ────────────► PAROLE ────────────────► TRUSTED
                          ▲   │  ▲                               │                    │
                          │   │  └────── check failed ───────────┘                    │
                          │   │  └────── a cause ─────────────────────────────────────┘
                          │   └─ too often, or the cause lasts ─► OUT ─ recovered by operator ─► PROBING

No task gets a GPU that is QUARANTINED, PROBING or OUT; such a GPU counts as `error`. Only tasks below normal priority
get a GPU on PAROLE.
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
    OUT = "out"  # waits for an operator


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
}  # of a step to this state; "info" for any other


class Cause(enum.StrEnum):
    """Why a GPU left service. Agents send the names; an unknown name counts as FAULT."""

    LOST = "lost"  # the driver, or the node's list, no longer has it
    XID = "xid"  # the driver logged a hardware error
    ECC = "ecc"  # memory errors that could not be corrected
    HOT = "hot"
    FAULT = "fault"  # any other fault that the probe reports
    STUCK = "stuck_memory"  # an ended task has not released its memory yet; this needs no quarantine
    FAILURES = "failures"  # different tasks failed on it in a row
    CHECK = "check"  # the check after a quarantine failed or was not answered


# These causes are momentary. The others last until the probe no longer reports them. An agent reports a momentary cause
# until it is asked to check the GPU.
MOMENTARY: Final = frozenset({Cause.XID, Cause.ECC, Cause.FAILURES, Cause.CHECK})


class HealthRules(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    cool_down_ms: int = 30_000  # without a fault, before a GPU is checked
    give_up_ms: int = 3_600_000  # a cause that lasts longer needs an operator
    check_timeout_ms: int = 120_000
    parole_runs: int = 3  # good runs that end a parole
    parole_ms: int = 600_000  # and the time that ends it without good runs
    failures_in_a_row: int = 3  # 0: failures of tasks never count against a GPU
    # Within the window; one more needs an operator. Journals have an older name.
    max_quarantines: int = msgspec.field(default=3, name="most_quarantines")
    window_ms: int = 86_400_000


class Blame(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """A failed task that the GPU may have caused: the task, its program, and the time."""

    tenant_id: str
    program: str
    task_id: TaskId
    at: int


class GpuHealth(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The health record of a GPU with a past. It is kept while the GPU is gone: a GPU that returns is not trusted at
    once.
    """

    gpu_id: GpuId
    node_id: NodeId
    state: Health = Health.TRUSTED
    since: int = 0  # begin of this state
    cause: str = ""  # why it left service
    evidence: str = ""
    remark: str = ""  # the reason of this state
    clear_since: int = 0  # quarantined: when the probe last stopped reporting a fault; 0: it still does
    quarantines: int = 0  # within the window
    quarantined_at: int = 0
    checks: int = 0  # number of the last check; answers to earlier checks are stale
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
    """Whether the fault still lasts, or was momentary."""
    return bool(fault) and cause_of(cause) not in MOMENTARY


def due_at(health: GpuHealth, rules: HealthRules) -> int | None:
    """When time alone takes the next step. The caller ensures that the GPU is present and its node connected."""
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
