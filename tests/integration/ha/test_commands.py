"""An operator makes a single scheduler highly available, loses a machine and replaces it. Real processes."""

from __future__ import annotations

import shutil

import pytest

from dgpu.core.digest import digest
from dgpu.entry.chaos.ports import free_port
from dgpu.entry.ha.engine_cluster import engine_settings
from dgpu.entry.ha.joining import fetch_state
from dgpu.journal.engine import Candidate
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.service.copies.wholeness import OUTPUT_FOLDER, Wholeness
from dgpu.service.recovery.lost_tail import readable_state
from dgpu.wire.machines import JoinToken
from dgpu.wire.records import encode_group
from integration.ha.member_cluster import eventually
from integration.service.serving import Served

pytestmark = pytest.mark.slow


@pytest.fixture
def three(site):
    """Two schedulers' members and a witness, all running."""
    site.with_tasks(50)
    site.init()
    site.start_member("a")
    site.start_door()
    site.join("b", site.b)
    site.start_member("b")
    site.until_healthy(2)
    site.join("c", site.c, "--witness")
    site.start_member("c")
    site.until_healthy(3)
    return site


def test_init_takes_over_tasks_and_epoch_and_may_be_repeated(site) -> None:
    site.with_tasks(50)
    before, index = readable_state(site.directory("a"))
    first = site.init()
    assert (first["tasks"], first["epoch"], first["index"]) == (50, before.epoch, index)
    assert (first["new"], first["cluster_id"]) == (True, before.cluster_id)
    assert site.init()["new"] is False
    assert "No majority of the members answers" in site.bad("ha", "handover", "--dir", site.directory("a"))
    site.start_member("a")
    site.until_healthy(1)
    status = site.status()
    assert (status["index"], status["epoch"]) == (index, before.epoch)


def test_init_again_takes_over_what_a_single_scheduler_did_meanwhile(site) -> None:
    site.with_tasks(5)
    first = site.init()
    site.with_tasks(5)
    again = site.init()
    assert again["index"] > first["index"]
    assert (again["tasks"], again["new"]) == (10, True)


def test_a_standby_follows_a_journal_that_was_taken_over(site) -> None:
    """Both directories agree with the engine about the end of the old journal, and about what comes after it."""
    site.with_tasks(5)
    index = site.init()["index"]
    site.start_member("a")
    site.until_healthy(1)
    settings = engine_settings(site.files("a"), [site.a])
    assert fetch_state(site.directory("b"), settings) == index
    engine = EtcdEngine(settings)
    ours, theirs = (ReplicatedJournal.open(site.directory(name), engine) for name in ("a", "b"))
    try:
        states = [journal.recover().replayed() for journal in (ours, theirs)]
        assert digest(states[0]) == digest(states[1])
        assert (ours.set_aside, ours.catch_up(), theirs.catch_up()) == (None, [], [])
        ours.lead(engine.campaign(Candidate(name="a", http="", grpc="", nonce="1")))
        ours.append(states[0].epoch, index + 1, encode_group([]))
        assert [group.index for group in theirs.catch_up()] == [index + 1]
    finally:
        ours.close()
        theirs.close()
        engine.close()


def test_the_first_scheduler_of_a_cluster_has_all_output(site) -> None:
    site.with_tasks(5)
    epoch = site.init()["epoch"]
    output = Wholeness(site.directory("a") / OUTPUT_FOLDER)
    output.on_lead(epoch_before=epoch, last_at=10_000_000, epoch=epoch + 1)
    assert not output.is_doubtful(1_000_000)


def test_leave_goes_back_to_a_single_scheduler_and_closes_the_old_journal(site) -> None:
    site.with_tasks(5)
    first = site.init()
    member = site.files("a").member()
    done = site.good("ha", "leave", "--dir", site.directory("a"))
    assert (done["index"], done["epoch"]) == (first["index"], first["epoch"])
    assert "has no member" in site.bad("ha", "leave", "--dir", site.directory("a"))
    site.with_tasks(5)  # it goes on alone
    again = site.init()
    assert (again["tasks"], again["new"]) == (10, True)
    # The old engine, as a machine that was left behind would start it.
    shutil.rmtree(site.files("a").folder)
    next(site.directory("a").glob("engine-left-*")).rename(site.files("a").folder)
    site.files("a").write(member)
    site.start_member("a")
    site.until_healthy(1)
    assert site.status()["leader"]["name"] == f"closed, and goes on in the single scheduler of {site.a}"


def test_a_second_scheduler_and_a_witness_join_and_a_lost_member_is_replaced(three) -> None:
    check_joined(three)
    check_refusals(three)
    three.kill_member("c")
    shutil.rmtree(three.directory("c"))
    three.good("ha", "replace-member", three.c, "--dir", three.directory("a"))
    three.good("ha", "replace-member", three.c, "--dir", three.directory("a"))  # again: nothing more happens
    three.join("c", three.c, "--witness")
    three.start_member("c")
    three.until_healthy(3)
    assert three.status("c")["has_quorum"]


def check_joined(three) -> None:
    """The snapshot went through the engine: the new directory continues with the next group."""
    mine, index = readable_state(three.directory("b"))
    engine = EtcdEngine(engine_settings(three.files("b"), three.members))
    stored = engine.snapshot()
    engine.close()
    assert stored.index == index == three.status()["index"]
    assert len(mine.tasks) == 50
    for name in ("ca/authority.pem", "token.key", "secrets.key"):
        assert (three.directory("b") / name).read_bytes() == (three.directory("a") / name).read_bytes()
        assert not (three.directory("c") / name).exists(), "a witness needs no keys"


def check_refusals(three) -> None:
    assert "runs and answers" in three.bad("ha", "replace-member", three.c, "--dir", three.directory("a"))
    assert "has joined" in three.bad("ha", "token", three.a, "--dir", three.directory("a"))
    assert "none of the members" in three.bad("ha", "token", "x.example", "--dir", three.directory("a"))
    token = three.token(three.c, "--witness")
    used = ("--server", f"127.0.0.1:{three.join_port}", "--token", token)
    assert "it still works" in three.bad("ha", "join", "--dir", three.directory("y"), *used)
    told = three.bad("ha", "join", "--dir", three.directory("x"), *used, "--witness")
    assert f"dgpu ha replace-member {three.c}" in told
    assert "used before" in three.bad("ha", "join", "--dir", three.directory("y"), *used, "--witness")
    assert "belongs to member" in three.bad("ha", "join", "--dir", three.directory("c"), *used, "--witness")


def test_a_lost_member_is_replaced_by_another_machine_if_both_others_answer(three) -> None:
    three.kill_member("b")
    three.kill_member("c")
    told = three.bad("ha", "replace-member", three.c, "--dir", three.directory("a"))
    assert f"{three.b} does not answer" in told
    assert "Nothing was changed" in told
    code, _, err = three.dgpu("ha", "status", "--dir", three.directory("a"))
    assert code == 1
    assert "No majority" in err
    three.start_member("b")
    three.until_healthy(2)
    old, three.c = three.c, f"127.0.0.1:{free_port(following=1)}"
    three.good("ha", "replace-member", old, "--with", three.c, "--dir", three.directory("a"))
    three.join("d", three.c, "--witness")
    three.start_member("d")
    three.until_healthy(3)
    assert old not in three.states()
    eventually(lambda: three.c in three.files("b").member().members, "the other machine to hear of it")
    three.start_member("c")  # the old machine comes back
    eventually(lambda: three.services["member c"].poll() is not None, "its refusal")
    assert "removed from the cluster" in three.log("member c")


def test_wrong_input_is_refused_by_name(site) -> None:
    a, b, c = site.members
    cases = [
        ((a, b), a, "expected three members, got two"),
        ((a, b, a), a, f"{a} is listed twice"),
        ((a, b, c), "127.0.0.1:1", "none of the members"),
        ((a, b, "c:2379"), a, "port 2379 belongs to"),
    ]
    for members, me, why in cases:
        listed = [part for each in members for part in ("--member", each)]
        told = site.bad("ha", "init", "--dir", site.directory("a"), *listed, "--me", me)
        assert why in told
    assert not site.directory("a").exists()
    assert "has no member" in site.bad("ha", "status", "--dir", site.directory("a"))


def test_a_join_that_reaches_no_scheduler_names_the_addresses_and_what_to_give(site) -> None:
    """Only the master listens, and it may be any of the schedulers."""
    token = str(JoinToken(join_id="a" * 16, secret="s" * 32, fingerprint="f" * 64))
    servers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    told = site.bad(
        "ha", "join", "--dir", site.directory("b"), "--server", ",".join(servers), "--token", token
    )
    assert all(f"{server} cannot be reached for joining" in told for server in servers)
    assert "server.join_address of both schedulers" in told


def test_init_needs_a_stopped_scheduler(site) -> None:
    served = Served(site.directory("a"))
    try:
        members = [part for each in site.members for part in ("--member", each)]
        told = site.bad("ha", "init", "--dir", site.directory("a"), *members, "--me", site.a)
        assert "Stop the scheduler first" in told
    finally:
        served.end(9)
