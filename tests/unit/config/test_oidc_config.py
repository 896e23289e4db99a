"""The section auth.oidc: every wrong key is named before the scheduler starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.entry.oidc import oidc_options
from dgpu.wire.roles import Role

GOOD = "issuer: https://id.example.org/realms/lab, client_id: dgpu"


def load(folder: Path, oidc: str, server: str = "{}", users: str = "none"):
    path = folder / "scheduler.yaml"
    path.write_text(f"server: {server}\nisolation: {{users: {users}}}\nauth: {{oidc: {{{oidc}}}}}\n")
    return load_scheduler_config(path)


def test_no_issuer_is_no_provider(tmp_path) -> None:
    assert oidc_options(load(tmp_path, "")) is None


def test_the_options_are_those_of_the_file(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(" s3cret\n")
    more = (
        f"client_secret_file: {secret}, tenants: {{team: vision}}, roles: {{ops: operator}}, default_role: ''"
    )
    options = oidc_options(load(tmp_path, f"{GOOD}, {more}"))
    assert options is not None
    assert (options.client_secret, options.tenants) == ("s3cret", {"team": "vision"})
    assert (options.roles, options.default_role) == ({"ops": Role.OPERATOR}, None)
    assert "s3cret" not in repr(options)


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("{}", "http://127.0.0.1:8080/login"),
        ('{http_address: "[::1]:80"}', "http://[::1]/login"),
        ('{http_address: ":443", http_tls: ca, allowed_hosts: [gpu.lab]}', "https://gpu.lab/login"),
        ('{http_address: "10.0.0.7:8443", http_tls: ca}', "https://10.0.0.7:8443/login"),
    ],
)
def test_the_address_of_the_login_page_follows_from_the_server(tmp_path, server, url) -> None:
    options = oidc_options(load(tmp_path, GOOD, server))
    assert options is not None
    assert options.redirect_url == url


@pytest.mark.parametrize(
    ("oidc", "server", "line"),
    [
        ("client_id: dgpu", "{}", "auth.oidc.issuer"),
        ("issuer: 'http://id.example.org', client_id: dgpu", "{}", "auth.oidc.issuer"),
        ("issuer: 'id.example.org', client_id: dgpu", "{}", "auth.oidc.issuer"),
        ("issuer: 'https://id.example.org'", "{}", "auth.oidc.client_id"),
        (f"{GOOD}, algorithms: [RS256, HS256]", "{}", "auth.oidc.algorithms"),
        (f"{GOOD}, algorithms: [none]", "{}", "auth.oidc.algorithms"),
        (f"{GOOD}, algorithms: []", "{}", "auth.oidc.algorithms"),
        (f"{GOOD}, scopes: [email]", "{}", "auth.oidc.scopes"),
        (GOOD, '{http_address: ":8080", http_tls: ca}', "auth.oidc.redirect_url"),
        (f"{GOOD}, redirect_url: 'https://gpu.lab/other'", "{}", "auth.oidc.redirect_url"),
        (f"{GOOD}, redirect_url: 'http://gpu.lab/login'", "{}", "auth.oidc.redirect_url"),
        (f"{GOOD}, client_secret_file: /no/such/file", "{}", "auth.oidc.client_secret_file"),
        (f"{GOOD}, tenants: {{team: 'a b'}}", "{}", "auth.oidc.tenants.team"),
        (f"{GOOD}, roles: {{team: king}}", "{}", "auth.oidc.roles"),
        (f"{GOOD}, default_role: admin", "{}", "auth.oidc.default_role"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, oidc, server, line) -> None:
    with pytest.raises(ConfigError) as told:
        load(tmp_path, oidc, server)
    assert line in str(told.value)


def test_accounts_are_several_users(tmp_path) -> None:
    """Their tasks would share a Unix user without anybody having said so."""
    with pytest.raises(ConfigError, match=r"isolation\.users"):
        load(tmp_path, GOOD, users="''")
