"""The calls on secrets. Values come in; none goes out."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import PathParameter

from dgpu.core.commands import DeleteSecret, SetSecret
from dgpu.core.model.secrets import Secret, secret_id
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, Who
from dgpu.service.rest.tenants import TenantIdText
from dgpu.service.secrets.rotation import NotRotated, rotate
from dgpu.service.secrets.vault import Vault
from dgpu.wire.answers import FieldError, Problem, Removed, instant
from dgpu.wire.change_requests import decode_nothing
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import invalid
from dgpu.wire.secret_answers import Rotated, SecretAnswer, SecretList
from dgpu.wire.secret_body import decode_secret
from dgpu.wire.secret_fields import A_NAME, SECRET_NAME
from dgpu.wire.tenant_fields import tenant_id_of

SecretName = Annotated[str, PathParameter(description=f"The secret's name: {A_NAME}.")]


@get(
    "/api/v1/secrets",
    summary="List secrets",
    description="Of your tenants: names, versions, and who set them. No call ever returns a value.",
)
async def list_secrets(rest: Given, who: Who) -> SecretList:
    found = await rest.runtime.read(
        lambda state: [each for each in state.secrets.values() if who.owns(each.tenant_id)]
    )
    found.sort(key=lambda each: (each.tenant_id, each.name))
    return SecretList(total=len(found), secrets=[_answer(each) for each in found])


@put(
    "/api/v1/tenants/{tenant_id:str}/secrets/{name:str}",
    summary="Set a secret",
    description="Creates it, or replaces its value. Stored encrypted. Running tasks keep the old value; a task that "
    "starts later gets this one.",
    status_code=200,
)
async def set_secret(
    rest: Given, who: Who, tenant_id: TenantIdText, name: SecretName, request: Request[Any, Any, Any]
) -> SecretAnswer:
    tenant, name = tenant_id_of(tenant_id), _checked(name)
    value = decode_secret(await request.body())
    sealed = _vault(rest).seal_secret(tenant, name, value)
    await rest.do(SetSecret(secret=Secret(tenant_id=tenant, name=name, sealed=sealed, set_by=who.user)))
    return await rest.runtime.read(lambda state: _answer(state.secrets[secret_id(tenant, name)]))


@delete(
    "/api/v1/tenants/{tenant_id:str}/secrets/{name:str}",
    summary="Delete a secret",
    description="Running tasks keep its value. A task that uses it and starts later fails.",
    status_code=200,
)
async def delete_secret(rest: Given, tenant_id: TenantIdText, name: SecretName) -> Removed:
    await rest.do(DeleteSecret(tenant_id=tenant_id_of(tenant_id), name=_checked(name)))
    return Removed(id=name)


@post(
    "/api/v1/secrets/rotate",
    summary="Rotate the key of all secrets",
    description="Makes a new key and encrypts all secrets and the variables of all tasks again under it. The key "
    "before it stays until the next rotation, because records of the journal use it. Body: {}.",
    status_code=200,
)
async def rotate_secrets(rest: Given, request: Request[Any, Any, Any]) -> Rotated:
    decode_nothing(await request.body())
    vault = _vault(rest)
    if rest.is_rotating:
        detail = "Another rotation is under way. It is complete when its own call has answered."
        raise ProblemError(Problem(status=409, code="rotating", title="Rotating already", detail=detail))
    rest.is_rotating = True
    try:
        return await rotate(rest.runtime, vault)
    except NotRotated as error:
        raise ProblemError(problem_of(error.rejection)) from error
    except OSError as error:
        detail = (
            f"The key file cannot be written: {error.strerror}. All values stay readable. Try again later."
        )
        problem = Problem(
            status=503,
            code="key_not_written",
            title="The key is not stored",
            detail=detail,
            facts={"why": error.strerror},
        )
        raise ProblemError(problem) from error
    finally:
        rest.is_rotating = False


def _checked(name: str) -> str:
    if not SECRET_NAME.fullmatch(name):
        raise invalid([FieldError(path="name", detail=f"Expected {A_NAME}, got {name[:64]!r}.")])
    return name


def _answer(secret: Secret) -> SecretAnswer:
    return SecretAnswer(
        name=secret.name,
        tenant_id=secret.tenant_id,
        version=secret.version,
        set_by=secret.set_by,
        set_at=instant(secret.set_at),
    )


def _vault(rest: Backend) -> Vault:
    if rest.vault is None:
        raise RuntimeError("a service without a key file for secrets")
    return rest.vault


ROUTES: tuple[Any, ...] = (list_secrets, set_secret, delete_secret, rotate_secrets)
