from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.entry.ha_config import shared_options

pytest.importorskip("dgpu.journal.etcd.settings")

EXTERNAL = """
storage: {journal: etcd}
ha:
  mode: external
  endpoints: ['https://etcd-1:2379', 'https://etcd-2:2379']
"""


def loaded(tmp_path: Path, text: str):
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    return load_scheduler_config(path, {})


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    return str(refused.value)


def test_a_lone_scheduler_has_no_engine(tmp_path: Path) -> None:
    assert shared_options(loaded(tmp_path, "")) is None


def test_an_external_engine_reaches_the_service(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("geheim\n")
    shared = shared_options(
        loaded(
            tmp_path,
            EXTERNAL
            + f"  user: dgpu\n  password_file: {password}\n  name: gpu-1\n  read_stale_max: 5\n"
            + "server: {http_address: '127.0.0.1:8081', grpc_address: '127.0.0.1:9091'}\n",
        )
    )
    assert shared is not None
    assert (shared.name, shared.http, shared.grpc) == ("gpu-1", "http://127.0.0.1:8081", "127.0.0.1:9091")
    assert shared.read_stale_max_ms == 5_000
    assert shared.etcd is not None
    assert shared.etcd.endpoints == ("https://etcd-1:2379", "https://etcd-2:2379")
    assert (shared.etcd.prefix, shared.etcd.user, shared.etcd.password) == ("/dgpu/", "dgpu", "geheim")
    assert "geheim" not in repr(shared)


def test_how_others_reach_this_scheduler_can_be_given(tmp_path: Path) -> None:
    text = EXTERNAL + "  http_url: https://gpu-1:8080/\n  grpc_address: gpu-1:9090\n"
    shared = shared_options(loaded(tmp_path, text))
    assert shared is not None
    assert (shared.http, shared.grpc) == ("https://gpu-1:8080", "gpu-1:9090")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("storage: {journal: etcd}", "storage.journal: etcd needs ha.mode: managed or external"),
        ("ha: {endpoints: ['https://e:1']}", "ha.mode: is off"),
        ("ha: {mode: external, endpoints: ['https://e:1']}", "ha.mode: external needs storage.journal: etcd"),
        ("{storage: {journal: etcd}, ha: {mode: external}}", "ha.endpoints: expected the addresses of etcd"),
        (EXTERNAL.replace("https://etcd-2:2379", "etcd-2"), "ha.endpoints"),
        ("ha: {mode: off}\n", 'true or false: write it with quotes, such as "off"'),
        (EXTERNAL + "  user: dgpu\n", "ha.user: needs ha.password_file"),
        (EXTERNAL + "  tls: {cert_file: /x}\n", "ha.tls.cert_file: needs ha.tls.key_file"),
        (EXTERNAL + "server: {http_address: '127.0.0.1:0'}\n", "server.http_address: needs a port"),
        (EXTERNAL + "  http_url: gpu-1\n", "ha.http_url: expected http://host:port"),
        (EXTERNAL + "  http_url: http://gpu-1:99999\n", "ha.http_url: expected http://host:port"),
        (EXTERNAL + "  grpc_address: gpu-1\n", "ha.grpc_address"),
        (EXTERNAL + "scheduler: {role: standby}\n", "scheduler.role: is decided by the schedulers"),
        ("scheduler: {role: standby}", "scheduler.role: standby needs ha.mode: external"),
        ("{storage: {journal: etcd}, ha: {mode: managed}}", "ha.members: expected three members, got 0"),
        (
            "{ha: {mode: managed, members: [a, b, c], member: a}}",
            "ha.mode: managed needs storage.journal: etcd",
        ),
        (
            "{storage: {journal: etcd}, ha: {mode: managed, members: [a, b], member: a}}",
            "ha.members: expected three members, got two",
        ),
        (
            "{storage: {journal: etcd}, ha: {mode: managed, members: [a, b, a], member: a}}",
            "ha.members: a:9379 is listed twice",
        ),
        (
            "{storage: {journal: etcd}, ha: {mode: managed, members: [a, b, c], member: d}}",
            "ha.member: d:9379 is none of ha.members",
        ),
        (
            "{storage: {journal: etcd}, ha: {mode: managed, members: [a, b, c]}}",
            "ha.member: expected the one of ha.members on this machine",
        ),
        (
            "{storage: {journal: etcd}, ha: {mode: managed, members: [a, b, c], member: a, endpoints: [https://x:1]}}",
            "ha.endpoints: is for ha.mode: external",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), (b"", "is empty"), (b"\xff\xfe", "is not a text in UTF-8")],
)
def test_an_unusable_password_file_is_refused_by_its_key(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    password = tmp_path / "password"
    if content is not None:
        password.write_bytes(content)
    config = loaded(tmp_path, EXTERNAL + f"  user: dgpu\n  password_file: {password}\n")
    with pytest.raises(OSError, match=rf"ha\.password_file: {password}: {why}"):
        shared_options(config)
