"""Estimates of the memory that tasks need."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get
from litestar.params import QueryParameter

from dgpu.core.model.estimates import Estimate
from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import WHOLE_MILLI, TaskDetail
from dgpu.core.rejections import UnknownTenant
from dgpu.core.rules.estimate import Need, estimate
from dgpu.core.state import ClusterState
from dgpu.service.rest.backend import ProblemError
from dgpu.service.rest.tasks import Given, Who
from dgpu.wire import fields
from dgpu.wire.answers import FieldError, instant_or_none
from dgpu.wire.cluster_answers import EstimateAnswer, EstimateList, NeedAnswer
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import shorten
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import invalid
from dgpu.wire.task_fields import DEFAULT_TENANT

_MAX_LISTED = 1_000
_TenantQuery = Annotated[str | None, QueryParameter(name="tenant", description="Only of this tenant.")]
_ModelQuery = Annotated[
    str | None, QueryParameter(name="model", description="The model of a task to estimate.")
]
_TypeQuery = Annotated[str | None, QueryParameter(name="task_type", description="The type of that task.")]
_AtomsQuery = Annotated[
    str | None, QueryParameter(name="atoms", description="The number of atoms of that task.")
]


@get(
    "/api/v1/estimates",
    summary="Estimates of memory",
    description="Memory use learned from runs, by model and command, the latest first. With model, task_type or atoms "
    "also the memory that such a task would request.",
)
async def list_estimates(
    rest: Given,
    who: Who,
    tenant: _TenantQuery = None,
    model: _ModelQuery = None,
    task_type: _TypeQuery = None,
    atoms: _AtomsQuery = None,
) -> EstimateList:
    whose = _checked("tenant", fields.tenant, tenant) if tenant else None
    default = who.tenants[0] if who.tenants else DEFAULT_TENANT
    if whose is not None and not who.owns(whose):
        raise ProblemError(problem_of(UnknownTenant(tenant_id=whose)))
    asked = TaskDetail(
        model_name=_checked("model", fields.short_line, model or ""),
        task_type=_checked("task_type", fields.short_line, task_type or ""),
        structure_n_atoms=_checked("atoms", fields.whole(0, 1_000_000_000), _number(atoms)),
    )

    def look(state: ClusterState) -> EstimateList:
        found = [
            each
            for each in state.estimates.values()
            if whose in {None, each.tenant_id} and who.owns(each.tenant_id)
        ]
        if model:
            found = [each for each in found if each.model == model]
        found.sort(key=lambda each: (-each.updated_at, each.tenant_id, each.model, each.command))
        need = None
        if model or task_type or atoms:
            need = _need(estimate(state, whose or TenantId(default), asked))
        listed = [_answer(each) for each in found[:_MAX_LISTED]]
        return EstimateList(total=len(found), estimates=listed, need=need)

    return await rest.runtime.read(look)


def _answer(known: Estimate) -> EstimateAnswer:
    return EstimateAnswer(
        tenant_id=known.tenant_id,
        model=known.model,
        command=known.command,
        base_mb=known.base_mb,
        runs=known.runs,
        ooms=known.ooms,
        peak_mb=known.peak_mb,
        updated_at=instant_or_none(known.updated_at),
    )


def _need(need: Need) -> NeedAnswer:
    return NeedAnswer(
        gpu_memory_mb=need.gpu_memory_mb,
        base_mb=need.base_mb,
        atoms=need.atoms,
        factor=need.factor_milli / WHOLE_MILLI,
        source="learned" if need.known else "table",
        runs=need.known.runs if need.known else 0,
        ooms=need.known.ooms if need.known else 0,
    )


def _number(text: str | None) -> int | str:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else text or 0


def _checked(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except Unacceptable as bad:
        detail = f"Expected {bad.expected}, got {shorten(value)}."
        raise invalid([FieldError(path=name, detail=detail)]) from None


ROUTES: tuple[Any, ...] = (list_estimates,)
