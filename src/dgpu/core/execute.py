"""execute(state, command): decide, then apply. A pass does both, grant by grant."""

from __future__ import annotations

from dgpu.core.apply.table import apply
from dgpu.core.commands import Command, RunPass
from dgpu.core.decide.schedule import run_pass
from dgpu.core.decide.table import decide
from dgpu.core.decision import Decision
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState


def execute(state: ClusterState, command: Command) -> Decision:
    """On return, the events are applied. A refusal changes nothing."""
    if type(command) is RunPass:
        return run_pass(state, command)
    decision = decide(state, command)
    if not isinstance(decision, Rejection):
        for event in decision:
            apply(state, event)
    return decision
