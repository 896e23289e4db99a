"""Every refusal has a meaning in HTTP."""

from __future__ import annotations

import typing

import msgspec
import pytest

from dgpu.core import rejections
from dgpu.core.model.dependencies import Dependency
from dgpu.core.rejections import (
    NeverFits,
    NodeBusy,
    Rejection,
    StorageFull,
    TenantBusy,
    TimeoutTooLong,
)
from dgpu.wire.problem import AnyRejection, problem_of


def every_kind(of: type[Rejection] = Rejection) -> list[type[Rejection]]:
    return [found for kind in of.__subclasses__() for found in (kind, *every_kind(kind))]


def example(kind: type[Rejection]) -> Rejection:
    samples = {int: 7, str: "seven", int | str: 7, tuple[Dependency, ...]: (Dependency(task_id=7),)}
    hints = typing.get_type_hints(kind, vars(rejections))
    values = {}
    for name in kind.__struct_fields__:
        hint = hints[name]
        values[name] = samples.get(getattr(hint, "__supertype__", hint), 7)
    return kind(**values)


def test_the_list_of_refusals_is_complete() -> None:
    assert set(typing.get_args(AnyRejection)) == set(every_kind())


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_every_refusal_has_a_status_a_title_and_words(kind) -> None:
    problem = problem_of(example(kind))
    assert 400 <= problem.status < 600
    assert problem.code == kind.code
    assert problem.title
    assert problem.detail.endswith(".")


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in every_kind()]
    assert len(codes) == len(set(codes))


def test_a_refused_entry_of_a_batch_is_named_by_its_place() -> None:
    refusal = NeverFits(entry=3, lacks="gpus", requested=9, largest=8)
    assert problem_of(refusal, batch=True).errors[0].path == "tasks[3].gpu_count"
    assert problem_of(refusal).errors[0].path == "gpu_count"
    assert "9 GPUs on one node; the largest node has 8" in problem_of(refusal).detail


def test_a_too_long_time_limit_says_both_numbers() -> None:
    problem = problem_of(TimeoutTooLong(entry=0, timeout_ms=90_000_000, max_timeout_ms=86_400_000))
    assert problem.status == 422
    assert "90000" in problem.detail
    assert "86400" in problem.detail


def test_a_full_disk_is_507() -> None:
    assert problem_of(StorageFull()).status == 507


def test_a_problem_is_encoded_as_rfc_9457_says() -> None:
    told = msgspec.to_builtins(problem_of(StorageFull()))
    assert {"type", "title", "status", "detail"} <= told.keys()


def test_a_refused_removal_says_when_it_is_possible() -> None:
    """Numbers alone do not tell an operator what to do."""
    busy = problem_of(TenantBusy(tenant_id="lab", waiting=0, running=1)).detail
    assert "removed when all of them have ended" in busy
    node = problem_of(NodeBusy(node_id="n1", leases=0, status="ready")).detail
    assert "drain it, then stop its agent" in node
