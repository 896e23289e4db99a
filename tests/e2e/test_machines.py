"""Machines with certificates: real schedulers and agents, from `dgpu ca init` to a revocation."""

from __future__ import annotations

import json
import signal
import stat

import pytest

from e2e.conftest import eventually, files_in
from e2e.tls_cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster():
    place = Cluster()
    yield place
    place.close()


def test_a_machine_joins_and_runs_tasks_and_restarts_change_nothing(cluster):
    cluster.up("n1")
    task = cluster.good("run", "-G", "1", "--", "echo hello from $DGPU_NODE")
    assert task.out == "hello from n1\n"
    cluster.stop("scheduler", signal.SIGKILL)
    (cluster.home / "scheduler.log").unlink()
    cluster.start("scheduler")
    cluster.is_ready("n1")
    assert cluster.good("run", "-G", "1", "--", "echo again").out == "again\n"
    cluster.stop("n1")
    cluster.start("n1")
    eventually(lambda: cluster.log("n1").count("registered node=n1") >= 3, "n1 to register again")
    assert cluster.good("run", "-G", "1", "--", "echo third").out == "third\n"


def test_a_used_token_and_a_wrong_fingerprint_are_refused(cluster):
    cluster.ca("init")
    cluster.start("scheduler")
    cluster.add("n1")
    cluster.add("n2")
    token = cluster.token("n1")
    strange = cluster.join("n1", token[:-4] + "0000")
    assert strange.code == 6, strange
    assert "Nothing was sent" in strange.err
    assert cluster.join("n1", token).code == 0
    used = cluster.join("n2", token)
    assert (used.code, "used before" in used.err) == (6, True)


def test_a_revoked_machine_is_cut_and_its_neighbour_is_not(cluster):
    cluster.up("n1", "n2")
    answer = cluster.ca("revoke", "n1")
    assert "n1 is revoked" in answer.err
    eventually(lambda: "the certificate of node n1 is revoked" in cluster.log("n1"), "n1 to be told")
    assert "agent_cut" in cluster.log("scheduler")
    cluster.is_ready("n2")
    rows = json.loads(cluster.ca("list", "--json").out)["machines"]
    assert {row["nodes"][0]: row["status"] for row in rows} == {"n1": "revoked", "n2": "joined"}


def test_certificates_are_renewed_while_tasks_run(cluster):
    """Certificates that should always have more time left than they get are renewed all the time."""
    cluster.ca("init")
    cluster.start("scheduler")
    cluster.add("n1", renew_before_seconds=3600)
    assert cluster.join("n1", cluster.token("n1")).code == 0
    pair = cluster.home / "n1" / "tls" / "agent.pem"
    first = pair.read_bytes()
    cluster.start("n1")
    cluster.is_ready("n1")
    eventually(lambda: pair.read_bytes() != first, "a new certificate")
    assert stat.S_IMODE(pair.stat().st_mode) == 0o600
    assert cluster.log("n1").count("registered node=n1") == 1
    cluster.stop("n1")
    cluster.start("n1")
    eventually(lambda: cluster.log("n1").count("registered node=n1") == 2, "n1 to register with it")
    assert cluster.good("run", "-G", "1", "--", "echo renewed").out == "renewed\n"


def test_an_agent_that_is_another_node_than_its_certificate_does_not_start(cluster):
    cluster.ca("init")
    cluster.start("scheduler")
    cluster.add("n2")
    joined = cluster.join("n2", cluster.token("n1"))
    assert "does not name n2" in joined.err
    answer = cluster.dgpu("agent", "--config", cluster.home / "n2.yaml")
    assert (answer.code, "names n1, not n2" in answer.err) == (1, True)


def test_a_machine_that_has_not_joined_gets_no_task(cluster):
    cluster.up("n1")
    cluster.add("n2")
    cluster.start("n2")
    eventually(lambda: "scheduler_unreachable" in cluster.log("n2"), "n2 to be refused")
    assert cluster.nodes() == {"n1": "ready"}


def test_secrets_are_in_private_files_only(cluster):
    cluster.ca("init")
    cluster.start("scheduler")
    cluster.add("n1")
    token = cluster.token("n1")
    cluster.join("n1", token)
    cluster.start("n1")
    cluster.is_ready("n1")
    secret = token.split(".")[1].encode()
    open_files, holders = [], []
    for path, content in files_in(cluster.home):
        if b"PRIVATE KEY" in content and stat.S_IMODE(path.stat().st_mode) != 0o600:
            open_files.append(path)
        if secret in content:
            holders.append(path)
    assert (open_files, holders) == ([], [])
    assert "PRIVATE KEY" not in cluster.log("scheduler") + cluster.log("n1")


def test_one_agent_may_be_several_simulated_nodes(cluster):
    cluster.ca("init")
    cluster.start("scheduler")
    cluster.add("sim")
    path = cluster.home / "sim.yaml"
    path.write_text(path.read_text().replace("id: sim,", "id: sim, simulated_nodes: 3,"))
    assert cluster.join("sim", cluster.token("sim-1", "sim-2", "sim-3")).code == 0
    cluster.start("sim")
    eventually(lambda: len(cluster.nodes()) == 3, "three nodes")
    assert set(cluster.nodes()) == {"sim-1", "sim-2", "sim-3"}


def test_a_scheduler_without_an_authority_says_how_to_make_one(cluster):
    answer = cluster.dgpu("scheduler", "--config", cluster.home / "scheduler.yaml")
    assert (answer.code, "dgpu ca init" in answer.err) == (1, True)
    assert not (cluster.home / "scheduler").exists()
