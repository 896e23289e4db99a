"""Tenants and quotas in requests and in scheduler.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dgpu.core.commands import SetQuota
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import MILLION, QuotaMode, Reclaim
from dgpu.core.model.task import Pool
from dgpu.core.model.tenant import Tenant
from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, expected_error, parse_json
from dgpu.wire.requests import invalid

MAX_GPUS = 1_000_000
MAX_TASKS = 1_000_000_000
MAX_WEIGHT = 1_000
MAX_HOURS = 1_000_000_000


class TenantField(NamedTuple):
    target: str
    check: Check
    about: str
    schema: dict[str, Any]


def _thousandths(low: float, most: float) -> Check:
    def check(value: Any) -> int:
        if type(value) in {int, float} and low <= value <= most:
            milli: int = round(value * 1_000)
            if abs(milli - value * 1_000) < 1e-6 * max(1, milli):
                return milli
        raise Unacceptable(f"a number from {low:g} to {most} with at most 3 decimals")

    return check


def pools(value: Any) -> tuple[Pool, ...]:
    if type(value) is not list or not value:
        raise Unacceptable("a list of online, batch or both")
    named = {fields.pool(each) for each in value}
    return tuple(pool for pool in Pool if pool in named)


def percent(value: Any) -> int:
    """A part from 0 to 1, as millionths."""
    if type(value) in {int, float} and 0 <= value <= 1:
        ppm: int = round(value * MILLION)
        return ppm
    raise Unacceptable("a number from 0 to 1")


def _one_of(kind: type[QuotaMode | Reclaim]) -> Check:
    words = [each.value for each in kind]

    def check(value: Any) -> QuotaMode | Reclaim:
        if type(value) is str and value in words:
            return kind(value)
        raise Unacceptable(" or ".join(words))

    return check


def _whole(most: int) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": 0, "maximum": most}


TENANT_FIELDS: dict[str, TenantField] = {
    "id": TenantField("id", fields.tenant, "Its name.", {"type": "string"}),
    "max_gpus": TenantField(
        "max_gpus", fields.whole(0, MAX_GPUS), "GPUs it may hold at once. null: no limit.", _whole(MAX_GPUS)
    ),
    "guaranteed_gpus": TenantField(
        "guaranteed_gpus",
        fields.whole(0, MAX_GPUS),
        "GPUs kept for its waiting tasks.",
        _whole(MAX_GPUS),
    ),
    "weight": TenantField(
        "weight_milli",
        _thousandths(0.001, MAX_WEIGHT),
        "Weight in the fair share. 1 if absent.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WEIGHT},
    ),
    "max_running": TenantField(
        "max_running", fields.whole(0, MAX_TASKS), "Tasks that may run at once.", _whole(MAX_TASKS)
    ),
    "max_waiting": TenantField(
        "max_waiting",
        fields.whole(0, MAX_TASKS),
        "Tasks that may wait; more are refused.",
        _whole(MAX_TASKS),
    ),
    "max_gpu_memory_mb": TenantField(
        "max_gpu_memory_mb",
        fields.whole(0, fields.MAX_MB),
        "Total GPU memory that its running tasks may request. Each task must then state its memory.",
        _whole(fields.MAX_MB),
    ),
    "max_priority": TenantField(
        "max_priority",
        fields.priority,
        "The highest priority it may use, or a level's name.",
        {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 100}, {"type": "string"}]},
    ),
    "pools": TenantField(
        "pools",
        pools,
        "Pools it may use. Both if absent.",
        {"type": "array", "items": {"enum": [pool.value for pool in Pool]}},
    ),
    "gpu_hours_per_month": TenantField(
        "gpu_hours_milli",
        _thousandths(0, MAX_HOURS),
        "Budget of a calendar month (UTC). When it is used up, tasks wait for the next month.",
        {"type": ["number", "null"], "minimum": 0, "maximum": MAX_HOURS},
    ),
}

QUOTA_FIELDS: dict[str, TenantField] = {
    "online_percent": TenantField(
        "online_ppm",
        percent,
        "The online pool's part of the schedulable GPUs, 0 to 1. The batch pool gets the rest.",
        {"type": "number", "minimum": 0, "maximum": 1},
    ),
    "mode": TenantField(
        "mode", _one_of(QuotaMode), "strict or borrow.", {"enum": [mode.value for mode in QuotaMode]}
    ),
    "reclaim": TenantField(
        "reclaim", _one_of(Reclaim), "wait or stop.", {"enum": [reclaim.value for reclaim in Reclaim]}
    ),
}


def decode_tenant(body: bytes, tenant_id: str | None = None) -> Tenant:
    """A whole tenant. If the id comes from the address, the body need not contain it."""
    raw = _object(body)
    if tenant_id is not None:
        if raw.get("id", tenant_id) != tenant_id:
            raise invalid([FieldError(path="id", detail="Differs from the id in the address.")])
        raw = {**raw, "id": tenant_id}
    tenant, errors = tenant_of(raw)
    if tenant is None:
        raise invalid(errors)
    return tenant


def tenant_of(raw: Mapping[str, Any]) -> tuple[Tenant | None, list[FieldError]]:
    values, errors = _checked(raw, TENANT_FIELDS)
    if "id" not in values and not any(error.path == "id" for error in errors):
        errors.append(FieldError(path="id", detail="Required: the tenant's name."))
    most, sure = values.get("max_gpus"), values.get("guaranteed_gpus", 0)
    if most is not None and sure > most:
        errors.append(
            FieldError(path="guaranteed_gpus", detail=f"Expected at most max_gpus ({most}), got {sure}.")
        )
    return (None if errors else Tenant(**values)), errors


def tenant_id_of(text: str) -> TenantId:
    try:
        name: TenantId = fields.tenant(text)
    except Unacceptable as bad:
        raise invalid([FieldError(path="tenant_id", detail=f"Expected {bad.expected}.")]) from None
    return name


def decode_quota(body: bytes) -> SetQuota:
    raw = _object(body)
    values, errors = _checked(raw, QUOTA_FIELDS)
    if errors:
        raise invalid(errors)
    if not values:
        raise BadRequest("malformed_request", 'Give a change: {"online_percent": 0.65}, mode or reclaim.')
    return SetQuota(**values)


def _object(body: bytes) -> dict[str, Any]:
    raw = parse_json(body)
    if type(raw) is not dict:
        raise BadRequest("malformed_request", "The body must be an object.")
    return raw


def _checked(
    raw: Mapping[str, Any], known: Mapping[str, TenantField]
) -> tuple[dict[str, Any], list[FieldError]]:
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for name, value in raw.items():
        field = known.get(name)
        if field is None:
            detail = f"This field is not known. Known fields: {', '.join(known)}."
            errors.append(FieldError(path=str(name)[:64], detail=detail, code="unknown_field"))
        elif value is not None:
            try:
                values[field.target] = field.check(value)
            except Unacceptable as bad:
                errors.append(expected_error(name, bad.expected, value))
    return values, errors
