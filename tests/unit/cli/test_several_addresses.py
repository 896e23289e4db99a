"""The command line with a master and a standby."""

from __future__ import annotations

import json
import os
import stat

import pytest

from dgpu.client.credentials import credentials_path
from stub_schedulers import stub_schedulers


@pytest.fixture
def pair():
    with stub_schedulers("standby", "master") as (standby, master):
        standby.master = master.url
        yield standby, master


def both(pair):
    return ",".join(server.url for server in pair)


def test_a_submit_finds_the_master_behind_the_standby(dgpu, pair, monkeypatch):
    monkeypatch.setenv("DGPU_SERVER", both(pair))
    code, out, _ = dgpu("submit", "-o", "name", "--", "true")
    assert (code, out) == (0, "task-1\n")
    assert [method for method, _, _ in pair[1].requests] == ["POST"]


def test_an_old_answer_of_a_standby_is_told_once(dgpu, pair):
    pair[0].lag_ms = 12_300
    pair[0].tasks.add("task-1")
    code, _, err = dgpu("--server", both(pair), "show", "1", "--json")
    assert (code, err) == (0, f"dgpu: {pair[0].url} is a standby; its data is 12 s old.\n")
    pair[0].lag_ms = 5_000
    assert dgpu("--server", both(pair), "show", "1", "--json")[2] == ""


def test_a_master_that_was_not_given_is_named_with_the_remedy(dgpu, pair):
    standby, master = pair
    code, out, err = dgpu("--server", standby.url, "--token", "s3cret", "submit", "--", "true")
    assert (code, out) == (3, "")
    assert f"{standby.url} is a standby. The master is {master.url}" in err
    assert f"{standby.url},{master.url}" in err
    assert master.requests == []


def test_all_addresses_are_listed_when_none_answers(dgpu):
    code, _, err = dgpu("--server", "127.0.0.1:1,127.0.0.1:2", "ps")
    assert code == 3
    assert "http://127.0.0.1:1 (" in err
    assert "http://127.0.0.1:2 (" in err


def test_a_bad_address_of_several_is_named(dgpu):
    code, _, err = dgpu("--server", "127.0.0.1:1,ftp://x", "ps")
    assert code == 2
    assert "'ftp://x' is not a scheduler's address" in err


def test_the_working_directory_is_sent_only_if_all_schedulers_are_on_this_machine():
    from dgpu.cli.connection import is_same_host

    assert is_same_host(["http://127.0.0.1:1", "http://localhost:2"])
    assert not is_same_host(["http://127.0.0.1:1", "http://10.0.0.1:2"])


def test_a_login_stores_the_token_for_all_addresses_and_a_logout_forgets_it(dgpu, server):
    """The second address is down; the token is valid for all schedulers of a cluster."""
    whoami = {"user": "ann", "role": "user", "tenants": ["lab"], "source": "token", "token_id": "t1"}
    server.answers["GET", "/api/v1/whoami"] = (200, whoami)
    addresses = f"{server.url},http://127.0.0.1:1"
    code, out, err = dgpu("--server", addresses, "--token", "dgpu_x", "login")
    assert code == 0, err
    assert f"Logged in to {addresses} as ann" in out
    path = credentials_path()
    assert json.loads(path.read_text())["tokens"] == dict.fromkeys(addresses.split(","), "dgpu_x")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600  # noqa: PTH116
    assert dgpu("--server", addresses, "logout", "-o", "name")[1].split() == addresses.split(",")
    assert json.loads(path.read_text())["tokens"] == {}


def test_doctor_looks_at_each_scheduler(dgpu, server):
    server.answers["GET", "/health"] = (200, {"status": "ok", "version": "99.0"})
    server.answers["GET", "/ready"] = (200, {"ready": True, "role": "standby", "epoch": 1})
    _, out, _ = dgpu("--server", f"127.0.0.1:1,{server.url}", "doctor", "--json")
    found = [check["detail"] for check in json.loads(out)["checks"] if check["name"] == "scheduler"]
    assert found[0] == "none answers at http://127.0.0.1:1"
    assert f"{server.url} has version 99.0" in found[1]
