"""The memory that a task needs: its stated demand, else an estimate learned from runs, else a formula.

    need = (base of the model + MB per atom x atoms) x factor of the task type

A task without any statement (no gpu_memory_mb, model, task type or atoms) that shares no GPU needs an idle GPU of any
size, until it has run out of memory once.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from dgpu.core.model.app import App
from dgpu.core.model.demand import demand_of
from dgpu.core.model.estimates import MAX_ESTIMATES, Estimate, app_key, command_key, model_key, title
from dgpu.core.model.ids import TenantId
from dgpu.core.model.lease import Lease
from dgpu.core.model.settings import EstimateRules
from dgpu.core.model.task import WHOLE_MILLI, Shape, Task, TaskDetail, TaskSpec, in_steps
from dgpu.core.rules.capacity import configured, never_fits, promised_mb
from dgpu.core.state import ClusterState

_GROWTH: Final = (6, 5)  # x 1.2
_SLOWNESS: Final = 8  # an over-estimate shrinks by an eighth per run
_TELLING: Final = (b'"task_type"', b'"structure_n_atoms"')  # keys in a detail, found without decoding it

_decode = msgspec.json.Decoder(TaskDetail).decode


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate and its source."""

    gpu_memory_mb: int
    base_mb: int
    atoms: int
    factor_milli: int
    known: Estimate | None  # None: nothing was learned; the table of the settings applies


def with_estimate(state: ClusterState, spec: TaskSpec) -> TaskSpec:
    """The task with a memory demand, if the submit leaves it to the scheduler."""
    shape = spec.shape
    if not shape.gpus or shape.gpu_memory_mb:
        return spec
    told = bool(shape.model) or any(word in spec.detail for word in _TELLING)
    if not told and not state.estimates:
        return spec
    detail = _decode(spec.detail)
    if not (shape.model or detail.task_type or detail.structure_n_atoms):
        known = state.estimates.get(command_key(shape.tenant_id, detail))
        if known is None:
            return spec
        return replace(spec, shape=replace(shape, gpu_memory_mb=in_steps(known.base_mb)))
    need = estimate(state, shape.tenant_id, detail)
    return replace(spec, shape=replace(shape, gpu_memory_mb=need.gpu_memory_mb))


def estimate(state: ClusterState, tenant_id: TenantId, detail: TaskDetail) -> Need:
    rules = state.settings.estimates
    known = state.estimates.get(model_key(tenant_id, detail.model_name)) if detail.model_name else None
    base_mb = rules.models_mb.get(detail.model_name, rules.base_mb) if known is None else known.base_mb
    atoms = detail.structure_n_atoms or rules.atoms
    factor = rules.factors_milli.get(detail.task_type, WHOLE_MILLI)
    return Need(
        gpu_memory_mb=in_steps(_need_mb(rules, base_mb, atoms, factor)),
        base_mb=base_mb,
        atoms=atoms,
        factor_milli=factor,
        known=known,
    )


def after_oom(state: ClusterState, task: Task, lease: Lease, at: int) -> tuple[str, Estimate, int]:
    """The new estimate, and the demand of the next attempt: at most the memory that the largest GPU may promise."""
    shape = state.shapes[task.shape_id]
    detail = _decode(task.detail)
    largest = max((promised_mb(state, gpu) for gpu in configured(state.gpus.values())), default=0)
    key = _key(shape.tenant_id, detail)
    if detail.model_name:
        need = estimate(state, shape.tenant_id, detail)
        base_mb = min(_grown(need.base_mb), max(largest, need.base_mb))
        demand = _need_mb(state.settings.estimates, base_mb, need.atoms, need.factor_milli)
        demand = max(demand, _grown(shape.gpu_memory_mb))
    else:
        known = state.estimates.get(key)
        held = shape.gpu_memory_mb or _card_mb(state, lease)
        base_mb = min(_grown(max(held, known.base_mb if known else 0)), max(largest, held))
        demand = base_mb
    learned = _touched(state.estimates.get(key), shape, detail, base_mb, at)
    return key, replace(learned, ooms=learned.ooms + 1), min(in_steps(demand), largest)


def after_oom_of_call(state: ClusterState, app: App, lease: Lease, at: int) -> tuple[str, Estimate] | None:
    """The memory that the next workers of the app ask for. None: no GPU has more than the worker under this lease."""
    shape, detail = app.spec.shape, _decode(app.spec.detail)
    held = lease.gpu_memory_mb or _card_mb(state, lease)
    largest = max((promised_mb(state, gpu) for gpu in configured(state.gpus.values())), default=0)
    if largest <= held:
        return None
    key = app_key(shape.tenant_id, app.id)
    known = state.estimates.get(key) or Estimate(
        tenant_id=shape.tenant_id, command=(detail.name or title(detail)), base_mb=0
    )
    base_mb = max(known.base_mb, min(_grown(held), largest))
    return key, replace(known, base_mb=base_mb, ooms=known.ooms + 1, updated_at=at)


def worker_spec(state: ClusterState, app: App) -> TaskSpec:
    """A worker asks for more than its app if calls ran out of memory, as long as there is a GPU for it."""
    shape = app.spec.shape
    known = state.estimates.get(app_key(shape.tenant_id, app.id)) if state.estimates else None
    if known is None or known.base_mb <= shape.gpu_memory_mb:
        return app.spec
    grown = replace(shape, gpu_memory_mb=in_steps(known.base_mb))
    if state.nodes and never_fits(state, demand_of(grown), 0) is not None:
        return app.spec
    return replace(app.spec, shape=grown)


def after_run(
    state: ClusterState, task: Task, peak_mb: int, at: int, finished_at: int
) -> tuple[str, Estimate] | None:
    """A run succeeded with a known peak. A peak above the estimate counts at once, a lower one only gradually."""
    shape = state.shapes[task.shape_id]
    if not shape.model and not state.estimates:
        return None
    detail = _decode(task.detail)
    rules = state.settings.estimates
    key = _key(shape.tenant_id, detail)
    known = state.estimates.get(key)
    if detail.model_name:
        need = estimate(state, shape.tenant_id, detail)
        base_mb = need.base_mb
        atoms_mb = rules.mb_per_atom_milli * need.atoms // 1_000
        seen_mb = max(0, -(-peak_mb * WHOLE_MILLI // need.factor_milli) - atoms_mb)
    elif known is not None:
        base_mb, seen_mb = known.base_mb, peak_mb
    else:
        return None
    if seen_mb >= base_mb:
        base_mb = seen_mb
    elif finished_at - task.started_at >= state.settings.memory_ramp_up_ms:
        base_mb -= (base_mb - seen_mb) // _SLOWNESS
    learned = _touched(known, shape, detail, base_mb, at)
    return key, replace(learned, runs=learned.runs + 1, peak_mb=peak_mb)


def evicted(estimates: dict[str, Estimate], key: str) -> str | None:
    """The estimate that is dropped so that `key` can be added."""
    if key in estimates or len(estimates) < MAX_ESTIMATES:
        return None
    return min(estimates, key=lambda each: (estimates[each].updated_at, each))


def _key(tenant_id: TenantId, detail: TaskDetail) -> str:
    return model_key(tenant_id, detail.model_name) if detail.model_name else command_key(tenant_id, detail)


def _touched(known: Estimate | None, shape: Shape, detail: TaskDetail, base_mb: int, at: int) -> Estimate:
    if known is None:
        command = "" if detail.model_name else title(detail)
        known = Estimate(tenant_id=shape.tenant_id, model=detail.model_name, command=command, base_mb=base_mb)
    return replace(known, base_mb=base_mb, updated_at=at)


def _need_mb(rules: EstimateRules, base_mb: int, atoms: int, factor_milli: int) -> int:
    return (base_mb + rules.mb_per_atom_milli * atoms // 1_000) * factor_milli // WHOLE_MILLI


def _card_mb(state: ClusterState, lease: Lease) -> int:
    """The memory that an exclusive task without a demand had: that of its smallest GPU."""
    return min((state.gpus[gpu_id].memory_mb for gpu_id in lease.gpu_ids), default=0)


def _grown(memory_mb: int) -> int:
    return memory_mb * _GROWTH[0] // _GROWTH[1]
