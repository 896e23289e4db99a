"""The service does what /openapi.json promises: schemathesis sends allowed and forbidden requests."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dgpu.service.alerts.options import AlertOptions
from rest_world import RestWorld

METHODS = ("get", "post", "put", "patch", "delete")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",  # every refusal is application/problem+json
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",  # 405 with Allow
    "allow_header_conformance",
)
STREAMS = r"/stream$|/api/v1/events$|/logs$"  # they do not end


@pytest.fixture
def described(tmp_path):
    with RestWorld(tmp_path, alerts=AlertOptions()) as world:
        world.add_node(gpus=2)
        for number in range(3):
            world.submit(name=f"task {number}")
        world.finish_running()
        world.submit(gpu_count=1)
        yield world


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_the_service_keeps_to_its_description(described, tmp_path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{described.url}/openapi.json", "--no-color"]
    command += ["--checks", ",".join(CHECKS), "--exclude-path-regex", STREAMS]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "3", "--seed", "1"]
    command += ["--generation-deterministic", "--request-timeout", "60"]
    told = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
        env={**os.environ, "CI": "1"},
    )
    assert told.returncode == 0, told.stdout[-20_000:] + told.stderr[-2_000:]
    assert int(re.findall(r"(\d+) generated", told.stdout)[0]) > 1_000


def test_options_lists_the_methods_of_every_call(described) -> None:
    paths = described.ask("GET", "/openapi.json").body["paths"]
    for path, item in paths.items():
        reply = described.ask("OPTIONS", re.sub(r"\{\w+\}", "x1", path))
        assert reply.status == 204, path
        allowed = {method.strip().lower() for method in reply.headers["allow"].split(",")}
        assert {method for method in METHODS if method in item} == allowed - {"options", "head"}, path
        refused = described.ask("TRACE", re.sub(r"\{\w+\}", "x1", path))
        assert refused.status == 405, path
        listed = {method.strip().lower() for method in refused.headers["allow"].split(",")}
        assert listed - {"options", "head"} == allowed - {"options", "head"}, path


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/", "GET, HEAD"), ("/health", "GET, HEAD"), ("/ready", "GET, HEAD"), ("/metrics", "GET, HEAD")],
)
def test_options_of_pages_and_probes(described, path, allowed) -> None:
    reply = described.ask("OPTIONS", path)
    assert (reply.status, reply.headers["allow"], reply.raw) == (204, f"{allowed}, OPTIONS", b"")


def test_options_of_nothing_is_not_found(described) -> None:
    for path in ("/api/v1/nothing", "/nothing.js", "/schema", "/schema/openapi.json"):
        assert described.ask("OPTIONS", path).status == 404


def test_every_refusal_is_described_as_a_problem(described) -> None:
    paths = described.ask("GET", "/openapi.json").body["paths"]
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, item in paths.items():
        for method in METHODS:
            for status, response in item.get(method, {}).get("responses", {}).items():
                if status == "default" or int(status) >= 400:
                    assert response["content"] == problem, (path, method, status)
