"""Records what requests did or tried: every change, accepted or refused, and every refusal for want of rights.

The answer leaves after its entry is durable. A command carries the entry of its request (`Backend.execute`); this hook
records all others. Entries hold no header, no query and no body.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dgpu.service.access.token_book import MARK
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.rest.access import READING_METHODS
from dgpu.service.rest.attempt import CURRENT, UNKNOWN, Attempt

_RIGHTS: Final = frozenset({401, 403})
_GUESSED: Final = "too_many_failures"
_HIDDEN: Final = "unknown_"  # how the codes of a 404 begin that is also the answer for another tenant's task
_NO_CALL: Final = "unknown_call"
_ENDED_TOKENS: Final = frozenset({"token_revoked", "token_expired"})


class _Told(msgspec.Struct):
    code: str = ""


_decoder = msgspec.json.Decoder(_Told)


class AuditHook:
    def __init__(self, app: Any, trail: AuditTrail) -> None:
        self._app = app
        self._trail = trail

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        attempt = Attempt(scope)
        held: Any = None  # the beginning of a refusal, until its code is known

        async def noting(message: Any) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                if message["status"] >= 400:
                    held = message
                    return
                if attempt.changes and not attempt.is_recorded:
                    await self._trail.record(attempt.entry())
            elif held is not None:
                start, held = held, None
                await self._refused(scope, attempt, start["status"], message.get("body", b""))
                await send(start)
            await send(message)

        before = CURRENT.set(attempt)
        try:
            await self._app(scope, receive, noting)
        finally:
            CURRENT.reset(before)

    async def _refused(self, scope: Any, attempt: Attempt, status: int, body: bytes) -> None:
        code = _code_of(body) or str(status)
        if not _is_told(attempt, scope["method"], status, code):
            return
        token_id = _id_of_token(scope["headers"]) if code in _ENDED_TOKENS else ""
        await self._trail.record(attempt.entry(status=status, code=code, token_id=token_id))


def _is_told(attempt: Attempt, method: str, status: int, code: str) -> bool:
    if status in _RIGHTS or code == _GUESSED:
        return True
    if method not in READING_METHODS:
        return attempt.changes
    is_hidden = status == 404 and code.startswith(_HIDDEN) and code != _NO_CALL
    return is_hidden and attempt.principal.tenants is not None and attempt.matched.call != UNKNOWN


def _code_of(body: bytes) -> str:
    try:
        return _decoder.decode(body).code
    except (msgspec.DecodeError, RecursionError):
        return ""


def _id_of_token(headers: list[tuple[bytes, bytes]]) -> str:
    """Of a token that was right once. Its id is public."""
    given = dict(headers).get(b"authorization", b"").partition(b" ")[2].strip()
    return given.removeprefix(MARK).partition(b"_")[0][:16].decode("ascii", "replace")
