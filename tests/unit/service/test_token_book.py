"""API tokens are verified by a keyed hash; a guess learns nothing."""

from __future__ import annotations

import asyncio
import json
import stat

import pytest

from dgpu.core.events import TokenCreated, TokenRevoked
from dgpu.core.model.tokens import Token
from dgpu.service.access.key_file import load_key
from dgpu.service.access.principal import Principal
from dgpu.service.access.token_book import MARK, NewSecret, TokenBook
from dgpu.service.access.token_use import stored_use
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.rest.access import Access
from dgpu.service.rest.failures import MAX_FAILURES, Peer
from dgpu.wire.answers import Problem
from dgpu.wire.roles import Role

STRANGER, ROOT = Peer(uid=1001), Peer(uid=0)


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def book_with(clock: Time | None = None, **fields: object) -> tuple[TokenBook, NewSecret]:
    book = TokenBook(b"k" * 32, {}, clock or Time())
    secret = book.new_secret()
    known = {"name": "n", "user": "ann", "role": "user", "tenants": ("lab",), **fields}
    token = Token(id=secret.token_id, keyed_hash=secret.keyed_hash, **known)  # type: ignore[arg-type]
    book.on_group(group(TokenCreated(1, token)))
    return book, secret


def group(*events: object) -> CommittedGroup:
    return CommittedGroup(index=1, events=tuple(events))  # type: ignore[arg-type]


def test_a_secret_names_its_principal() -> None:
    book, secret = book_with()
    assert book.verify(secret.text.encode()) == Principal(
        user="ann", role=Role.USER, source="token", tenants=("lab",), token_id=secret.token_id
    )


def test_a_secret_has_256_random_bits_and_a_mark() -> None:
    texts = {TokenBook(b"", {}, Time()).new_secret().text for _ in range(100)}
    assert len(texts) == 100
    assert all(text.startswith("dgpu_") and len(text.split("_", 2)[2]) >= 43 for text in texts)


def test_the_secret_is_in_no_repr() -> None:
    _, secret = book_with()
    assert secret.text not in repr(secret)
    assert secret.text[18:] not in repr(secret)


@pytest.mark.parametrize(
    "change", [lambda s: s[:-1], lambda s: s + "x", lambda s: s.swapcase(), lambda s: s[:18]]
)
def test_another_secret_of_the_same_id_is_wrong(change) -> None:
    book, secret = book_with()
    assert book.verify(change(secret.text).encode()) == "wrong"


def test_a_secret_under_another_key_is_wrong() -> None:
    """A stolen journal and snapshot let nobody in, and prove no guess."""
    _, secret = book_with()
    token = Token(id=secret.token_id, name="n", user="u", role="user", keyed_hash=secret.keyed_hash)
    other = TokenBook(b"j" * 32, {secret.token_id: token}, Time())
    assert other.verify(secret.text.encode()) == "wrong"


def test_a_revoked_token_is_refused_at_once() -> None:
    book, secret = book_with()
    book.on_group(group(TokenRevoked(2, secret.token_id)))
    assert book.verify(secret.text.encode()) == "revoked"
    assert book.verify(secret.text.encode()[:-1]) == "wrong"


def test_a_token_expires_by_the_wall_clock() -> None:
    clock = Time()
    book, secret = book_with(clock, expires_wall_ms=clock.now + 10)
    assert isinstance(book.verify(secret.text.encode()), Principal)
    clock.now += 10
    assert book.verify(secret.text.encode()) == "expired"


def test_a_token_that_made_room_is_unknown() -> None:
    book, secret = book_with()
    other = Token(id="k9", name="", user="u", role="user", keyed_hash=bytes(32), tenants=("lab",))
    book.on_group(group(TokenCreated(2, other, (secret.token_id,))))
    assert book.verify(secret.text.encode()) == "wrong"


def test_a_role_of_a_newer_version_has_no_rights() -> None:
    book, secret = book_with(role="archivist")
    assert book.verify(secret.text.encode()) == "wrong"


def test_the_last_use_is_stored_lazily_and_survives_a_restart(tmp_path) -> None:
    clock = Time()
    book, secret = book_with(clock)
    path = tmp_path / "token.used"

    async def use() -> None:
        async with stored_use(book, path, every_s=3_600):
            for _ in range(100):
                book.verify(secret.text.encode())
            assert not path.exists(), "never per request"

    asyncio.run(use())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes()) == {secret.token_id: clock.now}
    assert book.take_use() is None
    again, _ = book_with(clock)
    again._entries = book._entries
    again.recall_use({secret.token_id: clock.now, "gone": 7})
    assert again.last_used_wall_ms(secret.token_id) == clock.now
    assert again.last_used_wall_ms("gone") == 0


def test_the_last_use_is_written_while_the_scheduler_runs(tmp_path) -> None:
    """A scheduler that is killed after months must not have forgotten all of them."""
    book, secret = book_with()
    path = tmp_path / "token.used"

    async def use() -> None:
        async with stored_use(book, path, every_s=0.001):
            book.verify(secret.text.encode())
            async with asyncio.timeout(30):
                while not path.exists():  # noqa: ASYNC110 - there is no event to wait on
                    await asyncio.sleep(0.001)

    asyncio.run(use())
    assert json.loads(path.read_bytes())
    path.write_bytes(b"{not json")
    asyncio.run(use())
    assert json.loads(path.read_bytes()), "a damaged file is replaced"


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path) -> None:
    path = tmp_path / "token.key"
    key = load_key(path)
    assert len(key) == 32
    assert load_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["token.key"]


def test_a_damaged_key_stops_the_start(tmp_path) -> None:
    """A new key made silently would lock every token out without a word."""
    (tmp_path / "token.key").write_text("abc\n")
    with pytest.raises(OSError, match="64 hexadecimal digits"):
        load_key(tmp_path / "token.key")


# at the door


def enter(access: Access, peer: Peer, secret: str) -> Principal | Problem:
    headers = {b"host": b"127.0.0.1", b"authorization": b"Bearer " + secret.encode()}
    return access.enter("GET", "/api/v1/tasks", headers, peer)


def door(book: TokenBook) -> Access:
    return Access(mode="loopback", token="t" * 43, clock=lambda: 0.0, own_uid=1000, tokens=book)


def test_a_client_that_sends_a_token_has_its_rights_also_as_root() -> None:
    book, secret = book_with()
    found = enter(door(book), ROOT, secret.text)
    assert isinstance(found, Principal)
    assert (found.role, found.tenants) == (Role.USER, ("lab",))


def test_ten_thousand_guesses_are_refused_and_the_right_one_among_them() -> None:
    book, secret = book_with()
    access = door(book)
    prefix = MARK.decode() + secret.token_id
    outcomes = [enter(access, STRANGER, f"{prefix}_{number:043d}") for number in range(10_000)]
    assert all(isinstance(each, Problem) for each in outcomes)
    assert {each.status for each in outcomes[MAX_FAILURES:]} == {429}
    assert enter(access, STRANGER, secret.text).status == 429
    assert isinstance(enter(access, Peer(uid=1002), secret.text), Principal)
    assert not any(secret.text[18:] in str(each) or "0000000" in str(each) for each in outcomes)


def test_guesses_from_one_address_do_not_lock_out_another() -> None:
    book, secret = book_with()
    access = door(book)
    for number in range(MAX_FAILURES):
        enter(access, Peer(uid=None, address="10.0.0.1"), f"dgpu_x_{number}")
    assert enter(access, Peer(uid=None, address="10.0.0.1"), secret.text).status == 429
    assert isinstance(enter(access, Peer(uid=None, address="10.0.0.2"), secret.text), Principal)


def test_revoked_and_expired_are_told_apart_from_wrong_only_with_the_secret() -> None:
    book, secret = book_with()
    book.on_group(group(TokenRevoked(2, secret.token_id)))
    access = door(book)
    assert enter(access, STRANGER, secret.text).code == "token_revoked"
    assert enter(access, STRANGER, secret.text[:-1]).code == "wrong_token"
    assert enter(access, STRANGER, "dgpu_nobody_x").code == "wrong_token"
