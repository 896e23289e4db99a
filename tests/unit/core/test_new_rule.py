"""How little a new rule takes; docs/scheduling.md, "Add a rule". The rule here: a tenant runs one task of each model at a time."""

from __future__ import annotations

from typing import ClassVar

import pytest

from building import cluster, do, finished, node, run_pass, task
from building.lockstep import execute_alike
from dgpu.core.commands import RunPass
from dgpu.core.decide import schedule
from dgpu.core.index.line import Claim, Line
from dgpu.core.refusals import Refusal, Scope
from dgpu.core.rules.access import Access
from dgpu.core.rules.admission import admit
from dgpu.core.state import ClusterState


class ModelBusy(Refusal, frozen=True, kw_only=True):
    code: ClassVar[str] = "model_busy"
    scope: ClassVar[Scope] = Scope.OTHER  # by demand, of which the model is a part
    model: str


def model_busy(state: ClusterState, line: Line) -> Refusal | None:
    for lease in state.leases.values():
        shape = state.shapes[state.tasks[lease.task_id].shape_id]
        if (shape.tenant_id, shape.model) == (line.shape.tenant_id, line.shape.model):
            return ModelBusy(model=shape.model)
    return None


def admit_and_more(state: ClusterState, line: Line, claim: Claim, access: Access) -> Refusal | None:
    return admit(state, line, claim, access) or model_busy(state, line)


@pytest.mark.patches_core
def test_a_rule_is_a_refusal_and_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "admit", admit_and_more)
    state = cluster(node("n1", gpus=4), task(model="uma", count=2), task(model="mace"))
    assert run_pass(state) == [1, 3]
    assert run_pass(state) == []
    do(state, finished(1))
    events = execute_alike(state, RunPass(at=state.last_at))
    assert [event.task_id for event in events] == [2]
