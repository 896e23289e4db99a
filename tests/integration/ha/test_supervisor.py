"""Real etcd processes under `dgpu witness`: kills, lost data, certificates."""

from __future__ import annotations

import shutil
import ssl
import time

import httpx
import pytest

from dgpu.agent.certificate import new_key, request_for
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.service.machines.authority import create_authority, load_authority
from dgpu.wire.machines import MachineNames
from integration.ha.member_cluster import eventually


@pytest.fixture
def running(cluster):
    for name in cluster.names:
        cluster.start(name)
    for name in cluster.names:
        eventually(lambda name=name: cluster.healthy(name), f"member {name} to be healthy")
    return cluster


def test_a_killed_member_is_started_again(running) -> None:
    for name in running.names:
        killed = running.kill_member(name)
        eventually(
            lambda name=name, killed=killed: running.member_pids(name) not in ([], [killed]), "a restart"
        )
        assert eventually(lambda name=name: running.healthy(name), f"member {name} to be healthy again")


def test_a_member_outlives_its_killed_supervisor_and_is_adopted(running) -> None:
    pid = running.member_pid("b")
    running.kill_witness("b")
    assert running.healthy("b")
    running.start("b")
    eventually(lambda: "member_adopted" in running.log("b"), "the adoption")
    assert running.member_pids("b") == [pid]
    running.kill_member("b")  # an adopted one is watched like any other
    eventually(lambda: running.member_pids("b") not in ([], [pid]), "a restart")


def test_a_stopped_supervisor_leaves_no_process(running) -> None:
    running.member_pid("c")
    assert running.stop("c") == 0
    assert running.member_pids("c") == []
    eventually(lambda: running.healthy("a"), "the other two to be healthy")


def test_a_member_that_ended_while_nobody_looked_is_started(running) -> None:
    running.kill_witness("b")
    pid = running.kill_member("b")
    eventually(lambda: running.member_pids("b") == [], "its end")
    running.start("b")
    eventually(lambda: running.member_pids("b") not in ([], [pid]), "a start")
    assert eventually(lambda: running.healthy("b"), "health")


def test_a_second_supervisor_of_a_directory_is_refused(running) -> None:
    first = running.witnesses["a"]
    running.start("a")
    assert running.witnesses["a"].wait(60) == 1
    assert "runs the member already" in running.log("a")
    running.witnesses["a"] = first


def test_an_emptied_data_directory_never_starts_as_the_same_member(running) -> None:
    eventually(lambda: running.files("b").member().started, "the marker")
    assert running.stop("b") == 0
    shutil.rmtree(running.files("b").data)
    running.start("b")
    assert running.witnesses["b"].wait(60) == 1
    assert f"dgpu ha replace-member {running.addresses['b']}" in running.log("b")
    assert running.member_pids("b") == []


def test_data_that_vanish_while_the_member_runs_are_refused_at_its_restart(running) -> None:
    eventually(lambda: running.files("b").member().started, "the marker")
    shutil.rmtree(running.files("b").data)
    running.kill_member("b")
    assert running.witnesses["b"].wait(60) == 1
    assert f"dgpu ha replace-member {running.addresses['b']}" in running.log("b")


def test_only_certificates_of_members_are_accepted(running, tmp_path) -> None:
    authority = load_authority(running.directory("a"))
    key = new_key()
    names = MachineNames(join_id="0" * 16, nodes=frozenset({"gpu-01"}))
    agent = authority.issue_agent(request_for(key), names, now_s=int(time.time()), lifetime_s=3_600)
    stranger, _ = create_authority(tmp_path / "other", now_s=int(time.time()))
    foreign = stranger.issue_member(request_for(key), "127.0.0.1", now_s=int(time.time()))
    for name, issued in (("agent", agent), ("foreign", foreign)):
        files = MemberFiles(tmp_path / name)
        files.write_certificate(
            key_pem=key, certificate_pem=issued.certificate_pem, authority_pem=authority.certificate_pem
        )
        with pytest.raises(httpx.HTTPError):
            running.get("a", "/health", certificate_of=files)
    without = ssl.create_default_context(cafile=running.files("a").authority)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"https://{running.addresses['a']}/health", verify=without, trust_env=False)
    assert running.get("a", "/health", certificate_of=running.files("b")).status_code == 200


def test_a_busy_port_at_the_first_start_is_no_lost_data(cluster) -> None:
    """The member has never had data, so it starts once the port is free."""
    import socket

    port = int(cluster.addresses["a"].rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        cluster.start("a")
        eventually(lambda: "member_died" in cluster.log("a"), "the first end")
        assert not cluster.files("a").member().started
    cluster.start("b")
    eventually(lambda: cluster.healthy("a"), "health")
