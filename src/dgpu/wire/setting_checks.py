"""Rules on settings that hold for the configuration file and for a service that is started without one."""

from __future__ import annotations

from dgpu.wire.address import Address


def why_exposed(address: Address, auth_mode: str, *, has_tls: bool) -> str | None:
    """For the port of REST. None: it has TLS, other machines cannot reach it, or `auth_mode` allows it."""
    if has_tls or address.is_loopback or auth_mode == "none":
        return None
    return (
        f"{str(address)!r} can be reached from other machines, and tokens would be sent in plain text. Set "
        "server.http_tls (docs/machines.md), use 127.0.0.1, or set auth.mode: none to let everyone who can reach it "
        "run commands"
    )


def why_plain_text(address: Address, auth_mode: str, *, has_tls: bool) -> str | None:
    """For the agents' port. None: it has TLS, other machines cannot reach it, or `auth_mode` allows it."""
    if has_tls or address.is_loopback or auth_mode == "none":
        return None
    return (
        f"{str(address)!r} can be reached from other machines, and agents would talk in plain text. Set "
        "server.grpc_tls: true (docs/machines.md), use 127.0.0.1, or set auth.mode: none to let everyone who can "
        "reach it pose as an agent"
    )


def why_lease_short(task_lease: float, heartbeat_timeout: float) -> str | None:
    """Both in the same unit."""
    if task_lease >= heartbeat_timeout:
        return None
    return "is shorter than agent.heartbeat_timeout: tasks of healthy nodes would be frozen"
