"""Everything that decides about people at the door: tokens, their last use, sessions, and the first token of a
cluster.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from dgpu.core.commands import CreateToken
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.tokens import Token
from dgpu.core.rejections import Rejection
from dgpu.service.access.ended_sessions import ENDED_NAME, EndedSessions
from dgpu.service.access.key_file import KEY_NAME, load_key
from dgpu.service.access.owner_token import load_token
from dgpu.service.access.table import Action
from dgpu.service.access.token_book import TokenBook, follow_tokens
from dgpu.service.access.token_use import USE_NAME, stored_use
from dgpu.service.loop.runtime import Runtime
from dgpu.service.options import ServiceOptions
from dgpu.service.rest.access import Access, user_name
from dgpu.wire.roles import Role

if TYPE_CHECKING:
    from dgpu.service.oidc.sign_in import Oidc

FIRST_TOKEN_SECONDS: Final = 7 * 86_400
FIRST_TOKEN_NAME: Final = "bootstrap"  # noqa: S105 - the name of a token
_FIRST_EPOCH: Final = 1
_SCHEDULER: Final = "dgpu scheduler"


@contextlib.asynccontextmanager
async def opened_access(options: ServiceOptions, runtime: Runtime) -> AsyncIterator[Access]:
    folder = options.data_dir
    tokens = await follow_tokens(runtime, load_key(folder / KEY_NAME))
    oidc = _oidc(options, tokens)
    access = Access(
        mode="none" if options.auth_mode == "none" else "loopback",
        token=load_token(folder / "token"),
        clock=time.monotonic,
        lasting_clock=lambda: runtime.now_ms() / 1000,  # a change of the wall clock ends no browser session
        hosts=frozenset(options.allowed_hosts),
        tokens=tokens,
        over_tls=options.http_tls is not None,
        requests_per_second=options.requests_per_second,
        ended=EndedSessions(folder / ENDED_NAME),
        oidc=oidc,
    )
    async with stored_use(tokens, folder / USE_NAME):
        try:
            yield access
        finally:
            if oidc is not None:
                await oidc.close()


def _oidc(options: ServiceOptions, tokens: TokenBook) -> Oidc | None:
    if options.oidc is None:
        return None
    from dgpu.service.oidc.sign_in import Oidc

    return Oidc(options.oidc, time.monotonic, lambda: tokens.now_wall_ms() / 1000)


async def show_first_token(runtime: Runtime, access: Access, show: Callable[[str], None] | None) -> None:
    """Only at the first start of a cluster, and journaled before it is shown. A crash between the two loses the secret;
    the scheduler's own user can always create another token.
    """
    tokens = access.tokens
    if show is None or tokens is None or access.mode == "none" or runtime.epoch != _FIRST_EPOCH:
        return
    secret = tokens.new_secret()
    token = Token(
        id=secret.token_id,
        name=FIRST_TOKEN_NAME,
        user=user_name(os.getuid()),  # no further user: tasks need no other Unix user for it
        role=Role.ADMIN.value,
        keyed_hash=secret.keyed_hash,
        all_tenants=True,
        created_by=_SCHEDULER,
        expires_wall_ms=tokens.now_wall_ms() + FIRST_TOKEN_SECONDS * 1_000,
    )
    entry = AuditEntry(user=_SCHEDULER, role="scheduler", action=Action.CHANGE_TOKEN.value)
    if not isinstance(await runtime.execute(CreateToken(token=token, audit=entry)), Rejection):
        show(secret.text)
