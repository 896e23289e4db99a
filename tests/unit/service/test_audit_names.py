"""Which call a request makes, and which names of it an entry keeps."""

from __future__ import annotations

import pytest

from dgpu.service.access.matching import match
from dgpu.service.access.operations import OPEN_OPERATIONS, OPERATIONS
from dgpu.service.audit.names import clean


@pytest.mark.parametrize("call", sorted({*OPERATIONS, *OPEN_OPERATIONS}))
def test_every_call_is_found_by_its_path(call: str) -> None:
    method, path = call.replace("{file_path}", "a/b").replace("{", "x").replace("}", "y").split(" ")
    found = match(method, path)
    assert found is not None
    assert (found.call, found.action) == (call, OPERATIONS.get(call))
    if "{" in call:
        assert found.name == f"x{found.name_kind}y"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nothing"),
        ("PUT", "/api/v1/tasks"),
        ("GET", "/api/v1/tasks/1/2/3"),
        ("GET", "/"),
        ("POST", "/api/v1/tasks/1/hold/x"),
    ],
)
def test_other_paths_are_no_call(method: str, path: str) -> None:
    assert match(method, path) is None


def test_a_secret_is_the_subject_and_its_tenant_is_known() -> None:
    found = match("PUT", "/api/v1/tenants/vision/secrets/HF_TOKEN")
    assert found is not None
    assert (found.name, found.tenant_id) == ("HF_TOKEN", "vision")


def test_head_and_a_last_slash_are_the_same_call() -> None:
    assert match("HEAD", "/metrics") == match("GET", "/metrics")
    assert match("POST", "/api/v1/tasks/") == match("POST", "/api/v1/tasks")


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("task-7", "task-7"),
        ("a\x1b[2Jb\nc", "a?[2Jb?c"),
        ("<b>x</b>", "<b>x</b>"),
        ("x" * 500, "x" * 64),
        ("dgpu_k2m4p6r7t2v5_SECRET", "dgpu_…"),
        ("see dgpuj_0123.SECRET", "dgpuj_…"),
        ("\u202eevil", "?evil"),
    ],
)
def test_a_name_is_printable_short_and_no_token(name: str, kept: str) -> None:
    """A token in the place of an id is a common slip: `dgpu token revoke` with the whole token."""
    assert clean(name) == kept
