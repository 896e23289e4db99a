"""The Unix user that a task gets on a node, and the node's own limits."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from dgpu.agent import accounts
from dgpu.agent.accounts import Accounts, IsolationOptions, NoAccount, UidBook
from dgpu.agent.frames import USERS_PROTOCOL
from dgpu.agent.run.orders import check_keeper
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import LeaseId, TaskId

UIDS = range(70_000, 70_003)


@pytest.fixture(autouse=True)
def _as_root(monkeypatch):
    """Only the question is answered here; no user is changed."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def node(place: pathlib.Path, **options) -> Accounts:
    return Accounts(place, place / "tasks", IsolationOptions(**options))


def test_every_tenant_has_a_uid_of_its_own_for_ever(tmp_path) -> None:
    """A reused uid would give a tenant the files of another one."""
    book = UidBook(tmp_path / "uids")
    assert [book.uid_of(tenant, UIDS) for tenant in ("a", "b", "a")] == [70_000, 70_001, 70_000]
    again = UidBook(tmp_path / "uids")
    assert [again.uid_of(tenant, UIDS) for tenant in ("b", "c")] == [70_001, 70_002]
    with pytest.raises(NoAccount, match=r"all uids of isolation.users \(70000-70002\) are in use"):
        again.uid_of("d", UIDS)
    assert stat.S_IMODE((tmp_path / "uids").stat().st_mode) == 0o600


def test_a_uid_of_a_present_user_is_not_given_to_a_tenant(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(accounts, "_exists", lambda uid: uid == 70_000)
    assert UidBook(tmp_path / "uids").uid_of("a", UIDS) == 70_001


def test_a_damaged_book_starts_nothing(tmp_path) -> None:
    """Beginning a new one would give known uids to other tenants."""
    (tmp_path / "uids.json").write_text("[[")
    with pytest.raises(NoAccount, match="cannot be read") as refused:
        node(tmp_path).find("a", "70000-70002")
    assert refused.value.is_of_node


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("root", "uid 0, below isolation.min_uid of this node \\(1000\\)"),
        ("daemon", "below isolation.min_uid"),
        ("500-599", "the Unix user of tenant a has uid 500, below isolation.min_uid"),
        ("no-such-user", "this node has no Unix user no-such-user"),
        ("", "tenant a has no Unix user: add it to isolation.users"),
    ],
)
def test_the_node_has_the_last_word(tmp_path, user, reason) -> None:
    with pytest.raises(NoAccount, match=reason):
        node(tmp_path).find("a", user)


def test_only_named_groups_are_kept(tmp_path) -> None:
    person = node(tmp_path, groups=("daemon",), max_processes=10).find("a", "70000-70002")
    assert person.account == (70_000, 70_000, (1,), 10)
    with pytest.raises(NoAccount, match="no group nobody-has-it"):
        node(tmp_path, groups=("nobody-has-it",)).find("a", "70000-70002")


def test_other_users_pass_to_their_directories_without_listing_them(tmp_path) -> None:
    node(tmp_path).find("a", "70000-70002")
    assert stat.S_IMODE((tmp_path / "tasks").stat().st_mode) == 0o711


def test_an_agent_that_is_not_root_starts_nothing_as_another_user(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoAccount, match="not root") as refused:
        node(tmp_path).find("a", "70000-70002")
    assert refused.value.is_of_node


def test_an_older_keeper_starts_no_task_of_another_user() -> None:
    """It would not know the user in the order, and start the task as root."""
    order = RunOrder(lease_id=LeaseId(1), task_id=TaskId(1), attempt=1, user="70000-70002")
    with pytest.raises(NoAccount, match="keeper is older"):
        check_keeper(order, USERS_PROTOCOL - 1)
    check_keeper(order, USERS_PROTOCOL)
