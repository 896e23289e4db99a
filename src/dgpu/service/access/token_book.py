"""Verifies API tokens. The book follows committed groups, so a revocation counts from the next request on."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from dgpu.core.events import TokenCreated, TokenRevoked
from dgpu.core.model.ids import TokenId
from dgpu.core.model.tokens import HASH_BYTES, Token
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.wire.roles import Role
from dgpu.wire.wall_time import SHOWN

MARK: Final = b"dgpu_"  # how the secret of an API token begins; scanners for leaked secrets look for it
SECRET_BYTES: Final = 32
MAX_SECRET_CHARS: Final = 128
_ID_CHARS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_ID_LENGTH: Final = 12
_NO_HASH: Final = bytes(HASH_BYTES)

Unverified = Literal["wrong", "revoked", "expired"]


async def follow_tokens(runtime: Runtime, key: bytes) -> TokenBook:
    """A book of the committed tokens that hears of every later group."""

    def begin(state: ClusterState) -> TokenBook:
        book = TokenBook(key, state.tokens, lambda: SHOWN.wall_ms(runtime.now_ms()))
        runtime.subscribe(book.on_group)
        return book

    return await runtime.read(begin)


class NewSecret(NamedTuple):
    token_id: TokenId
    text: str  # shown once, stored nowhere
    keyed_hash: bytes

    def __repr__(self) -> str:
        return f"NewSecret(token_id={self.token_id!r})"


class _Entry(NamedTuple):
    keyed_hash: bytes
    principal: Principal
    expires_wall_ms: int
    revoked: bool

    def has_expired(self, now_wall_ms: int) -> bool:
        return bool(self.expires_wall_ms) and now_wall_ms >= self.expires_wall_ms


class TokenBook:
    def __init__(self, key: bytes, tokens: Mapping[TokenId, Token], wall_ms: Callable[[], int]) -> None:
        self._key = key
        self._wall_ms = wall_ms
        self._entries: dict[bytes, _Entry] = {}
        self._last_used: dict[str, int] = {}  # wall clock
        self._is_use_stored = True
        for token in tokens.values():
            self._note(token)

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            if isinstance(event, TokenCreated):
                for token_id in event.dropped:
                    self._drop(token_id)
                self._note(event.token)
            elif isinstance(event, TokenRevoked):
                name = event.token_id.encode()
                if name in self._entries:
                    self._entries[name] = self._entries[name]._replace(revoked=True)

    def verify(self, secret: bytes) -> Principal | Unverified:
        """One look-up and one hash, whether the id is known or not. Reasons are told only to the right secret."""
        if len(secret) > MAX_SECRET_CHARS:
            return "wrong"
        entry = self._entries.get(secret[len(MARK) :].partition(b"_")[0])
        is_right = hmac.compare_digest(self._hash(secret), _NO_HASH if entry is None else entry.keyed_hash)
        return "wrong" if entry is None or not is_right else self._used(entry)

    def principal_of(self, token_id: str) -> Principal | Unverified:
        """For a session that was opened with this token."""
        entry = self._entries.get(token_id.encode())
        return "wrong" if entry is None else self._used(entry)

    def _used(self, entry: _Entry) -> Principal | Unverified:
        now = self._wall_ms()
        if entry.revoked:
            return "revoked"
        if entry.has_expired(now):
            return "expired"
        self._last_used[entry.principal.token_id] = now
        self._is_use_stored = False
        return entry.principal

    def is_good(self, token_id: str) -> bool:
        """For streams that were opened with it."""
        entry = self._entries.get(token_id.encode())
        return entry is not None and not entry.revoked and not entry.has_expired(self._wall_ms())

    def last_used_wall_ms(self, token_id: str) -> int:
        """0: never, as far as known."""
        return self._last_used.get(token_id, 0)

    def recall_use(self, stored: Mapping[str, int]) -> None:
        for token_id, wall_ms in stored.items():
            if token_id.encode() in self._entries:
                self._last_used.setdefault(token_id, wall_ms)

    def take_use(self) -> dict[str, int] | None:
        """None: no use since the last call."""
        if self._is_use_stored:
            return None
        self._is_use_stored = True
        return dict(self._last_used)

    def new_secret(self) -> NewSecret:
        token_id = "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))
        text = f"{MARK.decode()}{token_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
        return NewSecret(TokenId(token_id), text, self._hash(text.encode()))

    def now_wall_ms(self) -> int:
        return self._wall_ms()

    def _hash(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    def _note(self, token: Token) -> None:
        if token.role not in set(Role):
            return  # of a newer version: it has no rights here
        principal = Principal(
            user=token.user,
            role=Role(token.role),
            source="token",
            tenants=None if token.all_tenants else tuple(token.tenants),
            token_id=token.id,
            scopes=tuple(token.scopes),
        )
        expires, revoked = token.expires_wall_ms, bool(token.revoked_at)
        self._entries[token.id.encode()] = _Entry(token.keyed_hash, principal, expires, revoked)

    def _drop(self, token_id: TokenId) -> None:
        self._entries.pop(token_id.encode(), None)
        self._last_used.pop(token_id, None)
