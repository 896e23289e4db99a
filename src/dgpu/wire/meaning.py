"""What a refusal means in HTTP, and the refusals of tokens and secrets (see wire.problem)."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from dgpu.core import rejections as r
from dgpu.wire.answers import FieldError

OfTokens = r.UnknownToken | r.TokenExists | r.TooManyTokens
OfServices = r.UnknownService | r.NoEarlierGeneration | r.TooManyServices
OfSecrets = r.UnknownSecret | r.SecretNotSet | r.TooManySecrets


class Meaning(NamedTuple):
    status: int
    title: str
    detail: str
    errors: tuple[FieldError, ...] = ()


def entry_path(entry: int, field: str, *, batch: bool) -> str:
    return f"tasks[{entry}].{field}" if batch else field


def of_token(rejection: OfTokens) -> Meaning:
    match rejection:
        case r.UnknownToken():
            return Meaning(404, "No such token", f"There is no token {rejection.token_id[:64]!r}.")
        case r.TokenExists():
            return Meaning(409, "The token exists", f"Token {rejection.token_id!r} already exists.")
        case r.TooManyTokens():
            detail = (
                f"{rejection.limit:,} tokens are stored, and none of them is revoked. Revoke old ones first."
            )
            return Meaning(409, "Too many tokens", detail)
        case _:
            assert_never(rejection)


def of_secret(rejection: OfSecrets, path: str) -> Meaning:
    """`path`: the field of a submit."""
    match rejection:
        case r.UnknownSecret():
            detail = f"Tenant {rejection.tenant_id} has no secret {rejection.name[:64]!r}."
            return Meaning(404, "No such secret", detail)
        case r.SecretNotSet():
            detail = (
                f"Tenant {rejection.tenant_id} has no secret {rejection.name!r}. "
                f"Set it with `dgpu secret set {rejection.name} -A {rejection.tenant_id}`."
            )
            error = FieldError(path=path, detail=detail, code=rejection.code)
            return Meaning(422, "The secret is not set", detail, (error,))
        case r.TooManySecrets():
            holder = (
                f"Tenant {rejection.tenant_id} has" if rejection.tenant_id else "All tenants together have"
            )
            detail = f"{holder} {rejection.limit:,} secrets, which is the maximum. Delete unused ones first."
            return Meaning(409, "Too many secrets", detail)
        case _:
            assert_never(rejection)


def of_service(rejection: OfServices) -> Meaning:
    match rejection:
        case r.NoEarlierGeneration():
            name = f"Service {rejection.name[:64]!r} of tenant {rejection.tenant_id}"
            detail = f"{name} has no earlier generation to return to."
            return Meaning(409, "No earlier generation", detail)
        case r.UnknownService():
            detail = f"Tenant {rejection.tenant_id} has no service {rejection.name[:64]!r}."
            return Meaning(404, "No such service", detail)
        case r.TooManyServices():
            detail = f"{rejection.limit:,} services exist, which is the maximum. Delete unused ones first."
            return Meaning(409, "Too many services", detail)
        case _:
            assert_never(rejection)
