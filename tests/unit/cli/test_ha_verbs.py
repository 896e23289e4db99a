"""What the verbs of `dgpu ha` print when they cannot do their work."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from dgpu.cli.flags import Flags
from dgpu.cli.ha_status import print_local
from dgpu.cli.main import run
from dgpu.entry.ha.status import HaStatus, LeaderRow, MemberRow
from dgpu.journal.engine import CLOSED

EXTERNAL = (
    "storage: {{journal: etcd, snapshot_dir: {0}}}\nha: {{mode: external, endpoints: ['http://e:2379']}}\n"
)
MEMBERS = ["--member", "a", "--member", "b", "--member", "c", "--me", "a"]


def refusal(*arguments: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert run(list(arguments)) == 6
    return told.getvalue()


def printed(status: HaStatus) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        print_local(status, Flags())
    return told.getvalue()


@pytest.mark.parametrize(
    "verb",
    [
        ["init", *MEMBERS],
        ["token", "b"],
        ["join", "--server", "a:1", "--token", "x"],
        ["handover"],
        ["replace-member", "b"],
        ["leave"],
    ],
)
def test_verbs_of_managed_members_say_so_in_external_mode(tmp_path: Path, verb: list[str]) -> None:
    """With etcd of the site, the advice must not be to found a managed cluster."""
    config = tmp_path / "scheduler.yaml"
    config.write_text(EXTERNAL.format(tmp_path / "state"))
    assert "ha.mode is external" in refusal("ha", *verb, "--config", str(config))
    assert not (tmp_path / "state").exists()


def test_without_a_configuration_the_refusal_asks_for_it() -> None:
    told = refusal("ha", "handover")
    assert "the usual directory, has no member" in told
    assert "--config scheduler.yaml" in told


def test_names_keep_their_first_letter_and_one_full_stop_ends_the_text(tmp_path: Path) -> None:
    told = refusal(
        "ha", "init", "--dir", str(tmp_path), "--member", "a", "--member", "b", "--member", "b", "--me", "a"
    )
    assert told == "dgpu: Members: b:9379 is listed twice.\n"
    assert refusal("ha", "join", "--dir", str(tmp_path), "--server", "x", "--token", "y").endswith("'x'.\n")


def test_an_engine_without_majority_shows_no_end_of_the_journal() -> None:
    row = MemberRow(address="a:9379", state="silent", healthy=False, me=True)
    told = printed(
        HaStatus(me="a:9379", role="scheduler", has_quorum=False, members=(row,), trouble="silent")
    )
    assert "No majority of members answers" in told
    assert "group 0" not in told


def test_a_closed_journal_names_the_scheduler_that_goes_on() -> None:
    row = MemberRow(address="a:9379", state="leader", healthy=True, me=True)
    leader = LeaderRow(name=CLOSED + "b:9379", http="", grpc="")
    told = printed(
        HaStatus(me="a:9379", role="scheduler", has_quorum=True, members=(row,), leader=leader, index=7)
    )
    assert "The journal is closed, and goes on in the single scheduler of b:9379: group 7" in told
