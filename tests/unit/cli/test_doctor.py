"""`dgpu doctor` says what is so, what is wrong, and what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading

import pytest

from dgpu.core_form import FORM
from dgpu.entry import doctor
from dgpu.entry.doctor import Verdict, examine
from dgpu.entry.processes import process_ref
from dgpu.entry.shared_uids import shared_uids
from dgpu.entry.state_dir import StateDir, UpRecord

from .conftest import problem


def checks(server_url, data_dir):
    return {check.name: check for check in examine((server_url,), data_dir)}


def test_a_ready_scheduler_of_this_version_is_ok(server, tmp_path):
    from dgpu import __version__

    server.answers["GET", "/health"] = (200, {"status": "ok", "version": __version__})
    server.answers["GET", "/ready"] = (200, {"ready": True, "role": "master", "epoch": 1})
    assert checks(server.url, tmp_path)["scheduler"].status is Verdict.OK


def test_a_uid_that_two_agents_gave_is_named(tmp_path, monkeypatch):
    books = {
        "one": [["vision", 70000], ["speech", 70001]],
        "two": [["robots", 70000]],
        "three": [["x", 70005]],
    }
    for name, given in books.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "uids.json").write_text(json.dumps(given))
    (tmp_path / "none").mkdir()
    found = shared_uids([tmp_path / name for name in (*books, "none")])
    assert found == [
        f"uid 70000 is tenant vision of {tmp_path / 'one'} and tenant robots of {tmp_path / 'two'}"
    ]
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor, "shared_uids", lambda: found)
    (check,) = doctor._uids()
    assert (check.status, check.detail) == (Verdict.WARN, found[0])
    assert "isolation.users" in check.advice
    monkeypatch.setattr(doctor, "shared_uids", list)
    assert list(doctor._uids()) == []


def test_another_version_is_a_warning_and_a_strange_server_a_failure(server, tmp_path):
    server.answers["GET", "/health"] = (200, {"status": "ok", "version": "99.0"})
    server.answers["GET", "/ready"] = (200, {"ready": True, "role": "master", "epoch": 1})
    assert checks(server.url, tmp_path)["scheduler"].status is Verdict.WARN
    server.answers["GET", "/health"] = (200, b"<html>")
    assert checks(server.url, tmp_path)["scheduler"].status is Verdict.FAIL
    server.answers["GET", "/health"] = (404, problem(404, "x", "y"))
    assert checks(server.url, tmp_path)["scheduler"].status is Verdict.FAIL


def test_the_directory_of_another_scheduler_is_not_looked_at(dgpu, monkeypatch):
    """Its room says nothing about a scheduler that keeps its journal elsewhere."""
    monkeypatch.setenv("DGPU_SERVER", "http://192.0.2.1:8080")
    monkeypatch.setattr("dgpu.entry.doctor.ask", lambda *_: None)
    found = data_directory(dgpu("doctor", "--json"))
    assert found["status"] == "ok"
    assert "not checked" in found["detail"]
    assert "http://192.0.2.1:8080" in found["detail"]


def test_the_directory_that_was_named_or_belongs_to_the_scheduler_is_looked_at(dgpu, tmp_path):
    named = dgpu("doctor", "--json", "--server", "127.0.0.1:1", "--data-dir", str(tmp_path))
    assert "GiB free" in data_directory(named)["detail"]
    assert "GiB free" in data_directory(dgpu("doctor", "--json"))["detail"]
    own = StateDir(None)
    own.create()
    own.write_record(
        UpRecord(url="http://127.0.0.1:1", token_file="", grpc_address="", version="1", started_at="")
    )
    assert "GiB free" in data_directory(dgpu("doctor", "--json", "--server", "localhost:1"))["detail"]


def data_directory(result):
    _, out, _ = result
    (found,) = [check for check in json.loads(out)["checks"] if check["name"] == "data directory"]
    return found


def test_it_tells_the_form_of_the_core_and_either_is_fine(tmp_path):
    found = checks("http://127.0.0.1:1", tmp_path)["core"]
    assert (found.detail, found.status) == (FORM, Verdict.OK)


def test_whatever_is_not_ok_comes_with_advice(tmp_path):
    for check in examine("http://127.0.0.1:1", tmp_path / "none"):
        assert check.detail
        assert check.advice or check.status is Verdict.OK, check


def test_services_without_their_supervisor_are_leftovers(tmp_path):
    process = subprocess.Popen(["sleep", "600"])
    try:
        gone = process_ref(1)
        record = UpRecord(
            url="http://127.0.0.1:1",
            token_file="",
            grpc_address="",
            version="1",
            started_at="",
            scheduler=process_ref(process.pid),
            supervisor=None if gone is None else type(gone)(pid=1, start_ticks=-1, boot_id=""),
        )
        StateDir(tmp_path).write_record(record)
        found = checks("http://127.0.0.1:1", tmp_path)["leftovers"]
        assert found.status is Verdict.WARN
        assert str(process.pid) in found.detail
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("written", ["127.0.0.1:{port}", "localhost:{port}", "http://127.0.0.1:{port}/"])
def test_the_scheduler_of_the_environment_is_asked_as_other_verbs_ask_it(dgpu, server, monkeypatch, written):
    server.answers["GET", "/health"] = (200, {"status": "ok", "version": "99.0"})
    server.answers["GET", "/ready"] = (200, {"ready": True, "role": "master", "epoch": 1})
    monkeypatch.setenv("DGPU_SERVER", written.format(port=server.server_port))
    _, out, _ = dgpu("doctor", "--json")
    (found,) = [check for check in json.loads(out)["checks"] if check["name"] == "scheduler"]
    assert "has version 99.0" in found["detail"]


def test_an_address_that_is_none_is_refused_by_name(dgpu, monkeypatch):
    monkeypatch.setenv("DGPU_SERVER", "ftp://somewhere")
    code, _, err = dgpu("doctor")
    assert code == 2
    assert "DGPU_SERVER" in err
    assert "'ftp://somewhere' is not a scheduler's address" in err


def test_a_port_that_a_scheduler_elsewhere_has_is_not_held_here(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("dgpu.entry.doctor.HTTP_PORT", port)
        assert checks(f"http://192.0.2.1:{port}", tmp_path)["http port"].status is Verdict.WARN
        assert checks(f"http://localhost:{port}", tmp_path)["http port"].status is Verdict.OK


def test_the_verb_prints_the_checks_and_fails_when_one_does(dgpu, server):
    server.answers["GET", "/health"] = (200, b"<html>")
    code, out, _ = dgpu("doctor", "--json", "--server", server.url)
    assert code == 1
    assert {check["status"] for check in json.loads(out)["checks"]} <= {"ok", "warn", "fail"}


def test_the_container_engine_is_asked(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DGPU__EXECUTOR__DOCKER__SOCKET", str(tmp_path / "sock"))
    (found,) = doctor._containers()
    assert (found.status, found.name) == (Verdict.WARN, "containers")
    assert f"{tmp_path}/sock does not answer: No such file" in found.detail
    with answering(tmp_path / "sock", b'{"Version": "5.1", "Components": [{"Name": "Engine"}]}'):
        (found,) = doctor._containers()
    assert (found.status, found.detail.split(" at ")[0]) == (Verdict.OK, "Engine 5.1")


@contextlib.contextmanager
def answering(path, body):
    """One HTTP answer on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            link, _ = listening.accept()
            link.recv(65_536)
            link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()
