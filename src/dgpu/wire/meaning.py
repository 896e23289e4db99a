"""What a refusal means in HTTP, and the refusals of tokens (see wire.problem)."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from dgpu.core import rejections as r
from dgpu.wire.answers import FieldError

OfTokens = r.UnknownToken | r.TokenExists | r.TooManyTokens


class Meaning(NamedTuple):
    status: int
    title: str
    detail: str
    errors: tuple[FieldError, ...] = ()


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
