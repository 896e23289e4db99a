"""The calls on API tokens, and who the caller is."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.params import PathParameter

from dgpu.core.commands import CreateToken, RevokeToken
from dgpu.core.model.ids import TenantId, TokenId
from dgpu.core.model.tokens import Token
from dgpu.core.rejections import UnknownToken
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, actions_of, not_permitted
from dgpu.service.access.token_book import TokenBook
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, Who
from dgpu.wire.answers import FieldError, Problem, Removed, instant, wall_instant
from dgpu.wire.isolation import EXPECTED, KEY
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import invalid
from dgpu.wire.roles import Role
from dgpu.wire.token_answers import NewToken, TokenAnswer, TokenList, WhoAmI
from dgpu.wire.token_fields import ALL_TENANTS, AskedToken, decode_token

TokenIdText = Annotated[str, PathParameter(description="The token's id: the part of its text after dgpu_.")]
_MAX_ID = 64
_BY_TENANT_ADMIN = frozenset({Role.USER, Role.VIEWER})


@get(
    "/api/v1/whoami",
    summary="Who you are",
    description="Your user, role and tenants, how you were recognised, and the actions that you may do for your own "
    "tenants.",
)
async def who_am_i(rest: Given, who: Who) -> WhoAmI:
    return WhoAmI(
        user=who.user,
        role=who.role.value,
        tenants=[ALL_TENANTS] if who.tenants is None else list(who.tenants),
        source=who.source,
        token_id=who.token_id or None,
        isolation=rest.options.boundary,
        scopes=list(who.scopes),
        actions=actions_of(who),
    )


@get(
    "/api/v1/tokens",
    summary="List API tokens",
    description="Without their secrets; revoked ones too. A tenant-admin sees tokens whose tenants are all its own.",
)
async def list_tokens(rest: Given, who: Who) -> TokenList:
    found = await rest.runtime.read(
        lambda state: [token for token in state.tokens.values() if _sees(who, token)]
    )
    found.sort(key=lambda token: (token.created_at, token.id))
    shown = [_answer(token, _book(rest)) for token in found]
    return TokenList(total=len(shown), tokens=shown)


@post(
    "/api/v1/tokens",
    summary="Create an API token",
    description="Its secret is in this answer only. A tenant-admin creates tokens of the roles user and viewer, for "
    "its own tenants.",
    status_code=201,
)
async def create_token(rest: Given, who: Who, request: Request[Any, Any, Any]) -> NewToken:
    asked = decode_token(await request.body())
    _refuse_more_rights(who, asked)
    refuse_second_user(rest, asked.user or who.user)
    book = _book(rest)
    secret = book.new_secret()
    expires = asked.expires_in_seconds
    token = Token(
        id=secret.token_id,
        name=asked.name,
        user=asked.user or who.user,
        role=asked.role.value,
        keyed_hash=secret.keyed_hash,
        tenants=tuple(TenantId(each) for each in asked.tenants),
        all_tenants=asked.all_tenants,
        created_by=who.user,
        expires_wall_ms=book.now_wall_ms() + expires * 1_000 if expires else 0,
        scopes=asked.scopes,
    )
    await rest.do(CreateToken(token=token))
    await rest.runtime.read(lambda _: None)  # the book has heard of it before the client can use it
    shown = _answer(token, book)
    return NewToken(
        token=secret.text,
        id=shown.id,
        name=shown.name,
        user=shown.user,
        role=shown.role,
        tenants=shown.tenants,
        expires_at=shown.expires_at,
        scopes=shown.scopes,
    )


@delete(
    "/api/v1/tokens/{token_id:str}",
    summary="Revoke an API token",
    description="It is refused from the next request on, and its open streams end. It stays in the list.",
    status_code=200,
)
async def revoke_token(rest: Given, who: Who, token_id: TokenIdText) -> Removed:
    name = TokenId(token_id)

    def look(state: ClusterState) -> Token | None:
        token = state.tokens.get(name)
        return token if token is not None and _sees(who, token) else None

    token = await rest.runtime.read(look)
    if token is None:
        raise ProblemError(problem_of(UnknownToken(token_id=TokenId(token_id[:_MAX_ID]))))
    if who.role is Role.TENANT_ADMIN and token.role not in _BY_TENANT_ADMIN and token.id != who.token_id:
        raise ProblemError(not_permitted(who, Action.CHANGE_TOKEN))
    await rest.do(RevokeToken(token_id=name))
    await rest.runtime.read(lambda _: None)  # the book has heard of it: the next request is refused
    rest.streams.check()
    return Removed(id=token_id)


def refuse_second_user(rest: Backend, user: str) -> None:
    """Tasks of several users must not share a Unix user unless the administrator has said so."""
    if rest.options.isolation.is_set or user in rest.owners:
        return
    detail = (
        f"The user is {user}, but all tasks run as the Unix user of the agent: those of {user} could act for every "
        f"other user. First set {KEY} in scheduler.yaml, or DGPU__ISOLATION__USERS: {EXPECTED}."
    )
    errors = [FieldError(path="user", detail=detail)]
    raise ProblemError(
        Problem(
            status=409,
            code="isolation_needed",
            title="isolation.users is not set",
            detail=detail,
            errors=errors,
            facts={"user": user, "key": KEY},
        )
    )


def _refuse_more_rights(who: Principal, asked: AskedToken) -> None:
    """A token has at most the rights of its creator."""
    unknown = [each for each in asked.scopes if each not in set(Action)]
    if unknown:
        detail = f"Expected actions of {', '.join(Action)}, got {unknown[0]!r}."
        raise invalid([FieldError(path="scopes", detail=detail)])
    if who.scopes and not (asked.scopes and set(asked.scopes) <= set(who.scopes)):
        detail = f"Expected some of {', '.join(who.scopes)}: the token of {who.user} is for these only."
        raise _refused("scopes", detail)
    if who.role is Role.ADMIN:
        return
    allowed = ", ".join(role.value for role in Role if role in _BY_TENANT_ADMIN)
    if asked.role not in _BY_TENANT_ADMIN:
        detail = f"The role is {asked.role.value}; a {who.role.value} may create tokens with: {allowed}."
        raise _refused("role", detail)
    foreign = [each for each in asked.tenants if not who.owns(each)]
    if asked.all_tenants or foreign:
        given = ALL_TENANTS if asked.all_tenants else foreign[0]
        detail = f"The tenant is {given}; {who.user} may create tokens for: {', '.join(who.tenants or ())}."
        raise _refused("tenants", detail)


def _refused(path: str, detail: str) -> ProblemError:
    errors = [FieldError(path=path, detail=detail)]
    return ProblemError(
        Problem(status=403, code="not_permitted", title="Not permitted", detail=detail, errors=errors)
    )


def _sees(who: Principal, token: Token) -> bool:
    if who.tenants is None:
        return True
    return not token.all_tenants and all(who.owns(each) for each in token.tenants)


def _answer(token: Token, book: TokenBook) -> TokenAnswer:
    last_used, expires = book.last_used_wall_ms(token.id), token.expires_wall_ms
    return TokenAnswer(
        id=token.id,
        name=token.name,
        user=token.user,
        role=token.role,
        tenants=[ALL_TENANTS] if token.all_tenants else list(token.tenants),
        created_by=token.created_by,
        created_at=instant(token.created_at),
        expires_at=wall_instant(expires) if expires else None,
        revoked=bool(token.revoked_at),
        last_used_at=wall_instant(last_used) if last_used else None,
        scopes=list(token.scopes),
    )


def _book(rest: Backend) -> TokenBook:
    if rest.tokens is None:
        raise RuntimeError("a service without a book of tokens")
    return rest.tokens


ROUTES: tuple[Any, ...] = (who_am_i, list_tokens, create_token, revoke_token)
