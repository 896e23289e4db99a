"""The section auth.oidc: its checks, and the options of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dgpu.entry.config_problem import Problem
from dgpu.entry.config_types import Oidc, SchedulerConfig
from dgpu.wire import isolation
from dgpu.wire.address import is_safe_url, parse_address

if TYPE_CHECKING:
    from dgpu.service.oidc.options import OidcOptions

LOGIN_PATH = "/login"
_MAX_SECRET_BYTES = 4_096


def check_oidc(config: SchedulerConfig) -> Iterator[Problem]:
    oidc = config.auth.oidc
    if not oidc.issuer:
        if oidc != Oidc():
            yield Problem("auth.oidc.issuer", "is needed by the other keys of auth.oidc")
        return
    from dgpu.service.oidc.options import ALGORITHMS

    if not is_safe_url(oidc.issuer) or "?" in oidc.issuer:
        yield Problem(
            "auth.oidc.issuer", f"expected https://..., or http on this machine, got {oidc.issuer!r}"
        )
    if not oidc.client_id:
        yield Problem("auth.oidc.client_id", "is needed: the name of dgpu at the identity provider")
    for algorithm in oidc.algorithms:
        if algorithm not in ALGORITHMS:
            yield Problem(
                "auth.oidc.algorithms", f"expected some of {', '.join(ALGORITHMS)}, got {algorithm!r}"
            )
    if not oidc.algorithms:
        yield Problem("auth.oidc.algorithms", "expected at least one")
    if "openid" not in oidc.scopes:
        yield Problem("auth.oidc.scopes", "expected openid among them")
    if not config.isolation.users:
        yield Problem(isolation.KEY, f"is needed by auth.oidc, for several users: {isolation.EXPECTED}")
    yield from _check_redirect(config)
    yield from _check_files(oidc)
    yield from _check_tenants(oidc)


def _check_redirect(config: SchedulerConfig) -> Iterator[Problem]:
    path, url = "auth.oidc.redirect_url", redirect_url(config)
    if not url:
        yield Problem(
            path, "is needed, because server.http_address names no host: https://gpu.example.org/login"
        )
    elif not is_safe_url(url) or not url.endswith(LOGIN_PATH) or "?" in url:
        yield Problem(path, f"expected https://HOST{LOGIN_PATH}, or http on this machine, got {url!r}")


def _check_files(oidc: Oidc) -> Iterator[Problem]:
    for path, name in (
        ("auth.oidc.client_secret_file", oidc.client_secret_file),
        ("auth.oidc.ca_file", oidc.ca_file),
    ):
        if not name:
            continue
        try:
            content = _content(name)
        except (OSError, ValueError, RuntimeError) as error:
            yield Problem(path, f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}")
            continue
        if not content:
            yield Problem(path, f"{name!r} is empty")


def _check_tenants(oidc: Oidc) -> Iterator[Problem]:
    from dgpu.wire import fields
    from dgpu.wire.fields import Unacceptable

    for value, tenant in oidc.tenants.items():
        try:
            fields.tenant(tenant)
        except Unacceptable as bad:
            yield Problem(f"auth.oidc.tenants.{value}", f"expected {bad.expected}, got {tenant!r}")


def redirect_url(config: SchedulerConfig) -> str:
    """Empty: it cannot be derived."""
    server = config.server
    if config.auth.oidc.redirect_url:
        return config.auth.oidc.redirect_url
    try:
        address = parse_address(server.http_address)
    except ValueError:
        return ""  # told for its own key
    host = next(iter(server.allowed_hosts), "") or address.host
    if host in {"", "0.0.0.0", "::"} or not address.port:  # noqa: S104 - these mean every interface, and name none
        return ""
    scheme, usual = ("http", 80) if server.http_tls == "none" else ("https", 443)
    name = f"[{host}]" if ":" in host else host
    port = "" if address.port == usual else f":{address.port}"
    return f"{scheme}://{name}{port}{LOGIN_PATH}"


def oidc_options(config: SchedulerConfig) -> OidcOptions | None:
    """For a configuration that was checked."""
    oidc = config.auth.oidc
    if not oidc.issuer:
        return None
    from dgpu.service.oidc.options import OidcOptions
    from dgpu.wire.roles import Role

    return OidcOptions(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        redirect_url=redirect_url(config),
        client_secret=_content(oidc.client_secret_file) if oidc.client_secret_file else "",
        audience=oidc.audience,
        cli_client_id=oidc.cli_client_id or ("" if oidc.client_secret_file else oidc.client_id),
        name=oidc.name,
        scopes=oidc.scopes,
        algorithms=oidc.algorithms,
        user_claim=oidc.user_claim,
        tenants_claim=oidc.tenants_claim,
        tenants=oidc.tenants,
        role_claim=oidc.role_claim,
        roles={value: Role(role) for value, role in oidc.roles.items()},
        default_role=Role(oidc.default_role) if oidc.default_role else None,
        clock_skew_s=oidc.clock_skew_seconds,
        session_s=oidc.session_seconds,
        ca_file=str(Path(oidc.ca_file).expanduser()) if oidc.ca_file else "",
    )


def _content(name: str) -> str:
    with Path(name).expanduser().open("rb") as file:
        return file.read(_MAX_SECRET_BYTES).decode().strip()
