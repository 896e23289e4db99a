"""How a task names its secrets, and the body that sets one."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from dgpu.core.model.secrets import MAX_VALUE_BYTES, SecretUse
from dgpu.core.model.task import TaskDetail
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import decode_batch, decode_task
from dgpu.wire.secret_body import decode_secret

WORD = "xyzzy-plugh"


def task(**fields: Any) -> bytes:
    return json.dumps({"command": "x", **fields}).encode()


def uses(body: bytes) -> dict[str, SecretUse]:
    return msgspec.json.decode(decode_task(body).detail, type=TaskDetail).secrets


def refused(body: bytes) -> list[tuple[str, str]]:
    with pytest.raises(BadRequest) as caught:
        decode_task(body)
    return [(error.path, error.detail) for error in caught.value.errors]


def test_a_list_means_variables_of_the_same_names() -> None:
    assert uses(task(secrets=["A", "B"])) == {"A": SecretUse(env="A"), "B": SecretUse(env="B")}


def test_an_object_names_the_variable_or_the_file() -> None:
    given = {"api-key": {"env": "KEY"}, "cert": {"file": "tls.pem"}}
    assert uses(task(secrets=given)) == {"api-key": SecretUse(env="KEY"), "cert": SecretUse(file="tls.pem")}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("A", "secrets"),
        ([1], "secrets[0]"),
        (["9A"], "secrets[0]"),
        (["a-b"], "secrets[0]"),
        (["DGPU_X"], "secrets[0]"),
        ({"A": "B"}, "secrets.A"),
        ({"A": {}}, "secrets.A"),
        ({"A": {"env": "X", "file": "y"}}, "secrets.A"),
        ({"A": {"env": "a b"}}, "secrets.A.env"),
        ({"A": {"env": "CUDA_VISIBLE_DEVICES"}}, "secrets.A.env"),
        ({"A": {"file": "../x"}}, "secrets.A.file"),
        ({"A": {"file": ".."}}, "secrets.A.file"),
        ({"A": {"file": ""}}, "secrets.A.file"),
        ({"A": {"env": "X"}, "B": {"env": "X"}}, "secrets.B"),
        ([f"A{n}" for n in range(17)], "secrets"),
    ],
)
def test_a_wrong_use_is_refused_by_its_place(given: Any, path: str) -> None:
    assert [place for place, _ in refused(task(secrets=given))] == [path]


def test_a_variable_is_set_once() -> None:
    body = task(env={"X": WORD}, secrets={"A": {"env": "X"}})
    assert refused(body) == [("secrets.A.env", "Expected a variable that is not in env, too, got X.")]


def test_a_secret_given_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="given twice"):
        decode_task(b'{"command":"x","secrets":{"A":{"env":"X"},"A":{"env":"Y"}}}')


def test_values_of_variables_leave_the_decoder_sealed() -> None:
    calls: list[object] = []

    def seal(tenant: str, env: dict[str, str]) -> str:
        calls.append((tenant, env))
        return "SEALED"

    spec = decode_task(task(env={"A": WORD}, tenant_id="lab"), seal=seal)
    assert WORD.encode() not in spec.detail
    assert msgspec.json.decode(spec.detail, type=TaskDetail) == TaskDetail(
        command="x", env={"A": ""}, sealed_env="SEALED"
    )
    assert calls == [("lab", {"A": WORD})]
    body = json.dumps({"task": {"command": "x", "env": {"A": WORD}}, "count": 9}).encode()
    list(decode_batch(body, None, seal))
    assert len(calls) == 2, "equal tasks are sealed once"
    decode_task(task(), seal=seal)
    assert len(calls) == 2


def test_a_body_holds_text_or_base64() -> None:
    assert decode_secret(json.dumps({"value": "wört"}).encode()) == "wört".encode()
    encoded = base64.b64encode(b"\0\xff").decode()
    assert decode_secret(json.dumps({"value_base64": encoded}).encode()) == b"\0\xff"
    assert len(decode_secret(json.dumps({"value": "x" * MAX_VALUE_BYTES}).encode())) == MAX_VALUE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        [WORD],
        WORD,
        {},
        {"valu": WORD},
        {"value": WORD, "value_base64": WORD},
        {"value": [WORD]},
        {"value_base64": WORD + "!"},
        {"value_base64": WORD + "ü"},
        {"value": ""},
        {"value": WORD * MAX_VALUE_BYTES},
    ],
)
def test_a_wrong_body_is_refused_without_showing_the_value(body: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_secret(json.dumps(body).encode())
    told = f"{caught.value.detail} {caught.value.errors}"
    assert WORD not in told
