"""The section ha of scheduler.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dgpu.entry.config_section import Name, Section


class HaTls(Section, frozen=True, kw_only=True):
    ca_file: str = ""  # PEM; empty: the authorities of the machine
    cert_file: str = ""  # of this scheduler, if etcd asks for one
    key_file: str = ""


class Ha(Section, frozen=True, kw_only=True):
    """Several schedulers, one of which leads. Needs storage.journal: etcd."""

    mode: Literal["off", "managed", "external"] = "off"
    name: Name = ""  # of this scheduler; empty: the host name
    http_url: str = ""  # of this scheduler for people; empty: from server.http_address
    grpc_address: str = ""  # of this scheduler for agents; empty: from server.grpc_address
    members: Annotated[
        tuple[str, ...], msgspec.Meta(max_length=16)
    ] = ()  # managed: three of host or host:port
    member: str = ""  # managed: the one on this machine
    endpoints: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()  # https://host:2379
    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = "/dgpu/"
    tls: HaTls = HaTls()
    user: str = ""
    password_file: str = ""
    read_stale_max: Annotated[float, msgspec.Meta(ge=1, le=3_600)] = 30
