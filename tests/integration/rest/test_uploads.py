"""Uploads over HTTP: stored once, refused early, needed by tasks."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tarfile

import pytest

from dgpu.client.errors import BadRequest
from dgpu.client.sync import Client
from dgpu.service.content.store import ContentLimits
from rest_world import Reply, RestWorld

CONTENT = os.urandom(3 << 20)
NAME = hashlib.sha256(CONTENT).hexdigest()
RAW = {"Content-Type": "application/octet-stream"}


def put(world: RestWorld, content: bytes = CONTENT, name: str = "") -> Reply:
    digest = name or hashlib.sha256(content).hexdigest()
    return world.ask("PUT", f"/api/v1/uploads/{digest}", raw=content, headers=RAW)


def test_an_upload_is_stored_once_and_found(world) -> None:
    assert world.ask("HEAD", f"/api/v1/uploads/{NAME}").status == 404
    first = put(world)
    assert (first.status, first.body) == (
        200,
        {"sha256": NAME, "tenant_id": "default", "size_bytes": len(CONTENT)},
    )
    assert world.ask("HEAD", f"/api/v1/uploads/{NAME}").status == 200
    assert put(world).body == first.body
    assert world.ask("GET", "/api/v1/uploads").body["used_bytes"] == len(CONTENT)
    assert world.ask("GET", f"/api/v1/uploads/{NAME}?tenant=other").body["code"] == "unknown_upload"


def test_damaged_content_and_wrong_names_store_nothing(world) -> None:
    assert put(world, b"x", NAME).body["code"] == "digest_mismatch"
    wrong = put(world, b"x", "abc")
    assert (wrong.status, wrong.body["errors"][0]["path"]) == (400, "sha256")
    assert world.ask("GET", "/api/v1/uploads").body["used_bytes"] == 0


def test_a_large_upload_is_refused_before_its_body_is_sent(tmp_path) -> None:
    with RestWorld(tmp_path, uploads=ContentLimits(max_bytes=1_000)) as world:
        connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest("PUT", f"/api/v1/uploads/{NAME}")
            connection.putheader("Content-Length", "5000000000")
            connection.endheaders()
            response = connection.getresponse()
            assert response.status == 413
            assert b"at most 1,000 bytes (storage.upload_max_mb)" in response.read()


def test_a_full_store_answers_507_and_keeps_what_it_has(tmp_path) -> None:
    limits = ContentLimits(max_bytes=2_000, tenant_bytes=2_500, total_bytes=9_000)
    with RestWorld(tmp_path, uploads=limits) as world:
        assert put(world, b"a" * 2_000).status == 200
        full = put(world, b"b" * 2_000)
        assert (full.status, full.body["code"]) == (507, "uploads_full")
        assert "use 2,000 of 2,500 bytes" in full.body["detail"]
        assert put(world, b"a" * 2_000).status == 200


def test_a_task_needs_an_upload_that_is_there(world) -> None:
    refused = world.ask("POST", "/api/v1/tasks", {"command": "true", "upload": NAME})
    assert (refused.status, refused.body["code"]) == (422, "unknown_upload")
    assert refused.body["errors"][0]["path"] == "upload"
    many = world.ask(
        "POST", "/api/v1/tasks/batch", {"tasks": [{"command": "a"}, {"command": "b", "upload": NAME}]}
    )
    assert many.body["errors"][0]["path"] == "tasks[1].upload"
    put(world)
    task_id = world.submit(upload=NAME)
    assert world.ask("GET", f"/api/v1/tasks/{task_id}").body["upload"] == NAME


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"command": "a", "upload": "x"}, "upload"),
        ({"command": "a", "upload": NAME.upper()}, "upload"),
        ({"command": "a", "upload": NAME, "workdir": "/tmp"}, "workdir"),
        ({"allocation": True, "upload": NAME}, "upload"),
    ],
)
def test_a_wrong_upload_is_refused_by_its_field(world, fields, path: str) -> None:
    refused = world.ask("POST", "/api/v1/tasks", fields)
    assert (refused.status, refused.body["errors"][0]["path"]) == (400, path)


def test_the_client_packs_a_project_and_sends_it_once(world, tmp_path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("print(1)")
    steps: list[str] = []
    with Client(f"http://127.0.0.1:{world.port}", on_progress=lambda step, *_: steps.append(step)) as client:
        task = client.submit(command="true", upload=project)
        digest = client.get(task.task_id).upload
        assert {"packing", "sending"} == set(steps)
        steps.clear()
        assert client.upload(project) == digest
        assert set(steps) == {"packing"}
        with pytest.raises(BadRequest, match="is no directory"):
            client.submit(command="true", upload=tmp_path / "nope")
    stored = next(world.folder.glob("content/tenant-*/*"))
    with tarfile.open(stored) as tar:
        assert tar.getnames() == ["main.py"]
