"""The token of a new machine, and the list of machines in which it is used up."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from dgpu.service.machines.authority import FOLDER
from dgpu.service.machines.roster import FILE, JoinRefused, Roster
from dgpu.wire.machines import (
    JoinKind,
    JoinToken,
    MachineNames,
    names_in,
    parse_fingerprint,
    parse_token,
    uris_of,
)

NOW_S = 1_000_000
KEY = b"the public key of a machine"


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    (tmp_path / FOLDER).mkdir()
    return Roster(tmp_path)


def test_a_token_survives_being_written_and_read() -> None:
    token = JoinToken(join_id="0123456789abcdef", secret="s" * 32, fingerprint="f" * 64)
    assert parse_token(f"  {token}\n") == token
    assert "ssss" not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "dgpuj_", "dgpuj_0123456789abcdef", "x.y.z", "dgpuj_a.b.c.d", "dgpuj_zz.short"]
)
def test_a_text_that_is_no_token_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="token") as refused:
        parse_token(text)
    assert "short" not in str(refused.value)


def test_a_fingerprint_may_be_written_as_openssl_does() -> None:
    assert parse_fingerprint("SHA256:" + ":".join(["AB"] * 32)) == "ab" * 32


def test_a_certificate_names_its_nodes_and_its_join() -> None:
    names = MachineNames(join_id="j", nodes=frozenset({"n1", "n2"}))
    assert names_in(uris_of(names)) == names
    assert names_in(["dgpu:node:n1"]) is None
    assert names_in(["dgpu:join:a", "dgpu:join:b", "dgpu:node:n1"]) is None
    assert names_in(["https://example.org"]) is None


def test_a_token_works_once(roster: Roster) -> None:
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    assert roster.redeem(join.id, secret, KEY, now_s=NOW_S + 1).nodes == ("n1",)
    with pytest.raises(JoinRefused, match="used before"):
        roster.redeem(join.id, secret, b"the key of a thief", now_s=NOW_S + 2)


@pytest.mark.parametrize(
    ("kind", "tried", "verb"),
    [
        ("witness", "scheduler", "dgpu ha join --witness"),
        ("agent", "witness", "dgpu agent join"),
        ("scheduler", "agent", "dgpu ha join"),
    ],
)
def test_a_token_for_another_kind_of_machine_is_refused_and_still_works(
    roster: Roster, kind: JoinKind, tried: JoinKind, verb: str
) -> None:
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60, kind=kind)
    with pytest.raises(JoinRefused, match=f"is for `{verb}`, not for .*; it still works"):
        roster.redeem(join.id, secret, b"the key of the wrong machine", now_s=NOW_S + 1, kind=tried)
    assert roster.redeem(join.id, secret, KEY, now_s=NOW_S + 2, kind=kind).joined_at_s == NOW_S + 2


def test_a_token_for_another_kind_of_machine_that_does_not_work_is_not_said_to(roster: Roster) -> None:
    late, used, revoked = (
        roster.invite((node,), now_s=NOW_S, lifetime_s=lifetime_s, kind="witness")
        for node, lifetime_s in (("late", 10), ("used", 60), ("revoked", 60))
    )
    roster.redeem(used[0].id, used[1], KEY, now_s=NOW_S + 1, kind="witness")
    roster.revoke("revoked", now_s=NOW_S + 1)
    for (join, secret), why in ((late, "expired"), (used, "used before"), (revoked, "revoked")):
        with pytest.raises(JoinRefused, match=why):
            roster.redeem(join.id, secret, b"another key", now_s=NOW_S + 20, kind="scheduler")


def test_an_answer_that_was_lost_is_repeated_for_the_same_key(roster: Roster) -> None:
    """Otherwise a broken connection costs the operator a new token."""
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    first = roster.redeem(join.id, secret, KEY, now_s=NOW_S + 1)
    assert roster.redeem(join.id, secret, KEY, now_s=NOW_S + 2).id == first.id


def test_a_token_expires(roster: Roster) -> None:
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    with pytest.raises(JoinRefused, match="expired"):
        roster.redeem(join.id, secret, KEY, now_s=NOW_S + 60)


def test_a_revoked_token_is_refused(roster: Roster) -> None:
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    assert [found.id for found in roster.revoke("n1", now_s=NOW_S)] == [join.id]
    with pytest.raises(JoinRefused, match="revoked"):
        roster.redeem(join.id, secret, KEY, now_s=NOW_S + 1)


def test_a_wrong_secret_and_an_unknown_join_get_the_same_answer(roster: Roster) -> None:
    join, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    answers = set()
    for join_id, guess in ((join.id, "x" * 32), ("0" * 16, secret)):
        with pytest.raises(JoinRefused) as refused:
            roster.redeem(join_id, guess, KEY, now_s=NOW_S)
        answers.add(str(refused.value))
    assert len(answers) == 1
    assert "not known here; if another scheduler made it, try again" in answers.pop()
    assert roster.redeem(join.id, secret, KEY, now_s=NOW_S).joined_at_s == NOW_S


def test_a_secret_is_not_in_the_file_and_the_file_is_private(roster: Roster, tmp_path: Path) -> None:
    _, secret = roster.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    path = tmp_path / FOLDER / FILE
    assert secret.encode() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_expired_long_ago_leaves_the_list(roster: Roster) -> None:
    later_s = NOW_S + 40 * 86_400
    roster.invite(("unused",), now_s=NOW_S, lifetime_s=60)
    for node, expires_at_s in (("gone", NOW_S + 60), ("renewed", later_s)):
        join, secret = roster.invite((node,), now_s=NOW_S, lifetime_s=60)
        roster.redeem(join.id, secret, KEY, now_s=NOW_S)
        roster.note_certificate(join.id, expires_at_s)
    roster.invite(("new",), now_s=later_s, lifetime_s=60)
    assert [join.nodes for join in roster.joins()] == [("new",), ("renewed",)]


def test_a_join_is_refused_when_revoked_or_when_its_last_certificate_has_expired(roster: Roster) -> None:
    join, secret = roster.invite(("n1", "n2"), now_s=NOW_S, lifetime_s=60)
    assert "has not joined" in join.why_refused(NOW_S)
    roster.redeem(join.id, secret, KEY, now_s=NOW_S)
    roster.note_certificate(join.id, NOW_S + 100)
    roster.note_certificate(join.id, NOW_S + 50)  # answers may arrive in another order
    found = roster.find(join.id)
    assert found is not None
    assert (found.why_refused(NOW_S + 99), found.why_refused(NOW_S + 100)) == (
        "",
        "the certificate of node n1 and 1 more has expired",
    )
    roster.revoke("n2", now_s=NOW_S)
    found = roster.find(join.id)
    assert found is not None
    assert "is revoked" in found.why_refused(NOW_S)


def test_a_list_of_an_earlier_version_gets_the_kind_of_a_join(tmp_path) -> None:
    """Machines that joined before members existed are agents."""
    (tmp_path / FOLDER).mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / FOLDER / FILE)) as old:
        old.execute(
            "CREATE TABLE joins (id TEXT PRIMARY KEY, nodes TEXT NOT NULL, secret_hash BLOB NOT NULL, "
            "token_expires_at_s INTEGER NOT NULL, public_key_hash BLOB, joined_at_s INTEGER NOT NULL DEFAULT 0, "
            "certificate_expires_at_s INTEGER NOT NULL DEFAULT 0, revoked_at_s INTEGER NOT NULL DEFAULT 0)"
        )
        old.execute(
            "INSERT INTO joins (id, nodes, secret_hash, token_expires_at_s) VALUES ('1', '[\"n\"]', x'00', 9)"
        )
        old.commit()
    roster = Roster(tmp_path)
    roster.invite(("a:9379",), now_s=1, lifetime_s=60, kind="witness")
    assert [(join.nodes, join.kind) for join in roster.joins()] == [
        (("a:9379",), "witness"),
        (("n",), "agent"),
    ]


def test_two_lists_become_equal_and_nothing_is_taken_back(tmp_path) -> None:
    """Schedulers of one cluster know the same machines. A revocation wins over an older copy of the row."""
    rosters = []
    for name in ("a", "b"):
        (tmp_path / name / FOLDER).mkdir(parents=True)
        rosters.append(Roster(tmp_path / name))
    ours, theirs = rosters
    join, secret = ours.invite(("n1",), now_s=NOW_S, lifetime_s=60)
    theirs.merge(ours.export(now_s=NOW_S))
    theirs.redeem(join.id, secret, KEY, now_s=NOW_S + 1)
    theirs.note_certificate(join.id, NOW_S + 500)
    old = ours.export(now_s=NOW_S)
    theirs.revoke("n1", now_s=NOW_S + 2)
    ours.merge(theirs.export(now_s=NOW_S))
    theirs.merge(old)
    assert ours.export(now_s=NOW_S) == theirs.export(now_s=NOW_S)
    with pytest.raises(JoinRefused, match="revoked"):
        ours.redeem(join.id, secret, KEY, now_s=NOW_S + 3)
    assert ours.export(now_s=NOW_S + 40 * 86_400) == []
