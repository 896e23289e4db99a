"""API tokens in the journal: created, revoked, bounded, and never in the way of tasks."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.commands import CreateToken, RevokeToken
from dgpu.core.digest import digest
from dgpu.core.events import TokenCreated, TokenRevoked
from dgpu.core.execute import execute
from dgpu.core.invariants import check_invariants
from dgpu.core.model.tokens import MAX_TOKENS, Token
from dgpu.core.rejections import TokenExists, TooManyTokens, UnknownToken
from dgpu.core.state import ClusterState

TOKEN = Token(id="k1", name="ci", user="ann", role="user", keyed_hash=bytes(32), tenants=("lab",))


def create(state: ClusterState, name: str = "k1", at: int = 5) -> object:
    return execute(state, CreateToken(at=at, token=replace(TOKEN, id=name)))


def test_a_token_is_stored_with_the_time_of_its_command() -> None:
    state = ClusterState()
    assert create(state) == (TokenCreated(5, replace(TOKEN, created_at=5)),)
    assert state.tokens["k1"].created_at == 5
    check_invariants(state)


def test_no_client_chooses_when_a_token_was_created_or_revoked() -> None:
    state = ClusterState()
    execute(state, CreateToken(at=5, token=replace(TOKEN, created_at=99, revoked_at=99)))
    assert state.tokens["k1"] == replace(TOKEN, created_at=5)


def test_an_id_is_given_once_also_after_it_was_revoked() -> None:
    """An old secret must never open a newer token."""
    state = ClusterState()
    create(state)
    assert create(state) == TokenExists(token_id="k1")
    execute(state, RevokeToken(at=6, token_id="k1"))
    assert create(state) == TokenExists(token_id="k1")


def test_a_revoked_token_stays_listed_and_is_revoked_once() -> None:
    state = ClusterState()
    create(state)
    assert execute(state, RevokeToken(at=6, token_id="k1")) == (TokenRevoked(6, "k1"),)
    assert state.tokens["k1"].revoked_at == 6
    assert execute(state, RevokeToken(at=7, token_id="k1")) == ()
    assert execute(state, RevokeToken(at=7, token_id="k2")) == UnknownToken(token_id="k2")


def test_revoked_tokens_make_room_and_valid_ones_do_not() -> None:
    state = ClusterState()
    for number in range(MAX_TOKENS):
        state.tokens[f"k{number}"] = replace(TOKEN, id=f"k{number}", created_at=1)
    assert create(state, "new") == TooManyTokens(limit=MAX_TOKENS)
    execute(state, RevokeToken(at=6, token_id="k2"))
    create(state, "new")
    assert len(state.tokens) == MAX_TOKENS
    assert "k2" not in state.tokens
    assert "new" in state.tokens


def test_a_state_without_tokens_has_the_digest_it_had() -> None:
    state = ClusterState()
    before = digest(state)
    create(state, at=0)
    assert digest(state) != before
    state.tokens.clear()
    assert digest(state) == before
