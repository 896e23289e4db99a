"""Calls on services: equal tasks behind one address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dgpu.client.call import Call
from dgpu.client.request import NOTHING, Request, api_path, encode, given
from dgpu.wire import answers
from dgpu.wire.link_answers import PortLink
from dgpu.wire.service_answers import ServiceAnswer, ServiceList


class ServiceCalls:
    @Call
    def services(self) -> Request[Sequence[ServiceAnswer]]:
        """Services of the caller's tenants, by tenant and name."""
        return Request("GET", api_path("services"), ServiceList).picking(lambda found: found.services)

    @Call
    def service(self, name: str, *, tenant_id: str | None = None) -> Request[ServiceAnswer]:
        """One service, with its replicas and the last steps."""
        return Request("GET", _path(name, tenant_id), ServiceAnswer)

    @Call
    def set_service(
        self, /, name: str, task: Mapping[str, Any], port: int, **options: Any
    ) -> Request[ServiceAnswer]:
        """Creates a service or changes it. `task` as for `submit`; `options`: replicas or min_replicas and
        max_replicas, health, requests_per_replica, replace, start_seconds and others of the API.
        """
        set_ones = {key: value for key, value in options.items() if value is not None}
        body = encode({"task": dict(task), "port": port, **set_ones})
        return Request("PUT", _path(name, None), ServiceAnswer, body=body)

    @Call
    def scale_service(
        self,
        name: str,
        replicas: int | None = None,
        *,
        min_replicas: int | None = None,
        max_replicas: int | None = None,
        tenant_id: str | None = None,
    ) -> Request[ServiceAnswer]:
        """Changes the number of replicas; none is restarted."""
        body = given(replicas=replicas, min_replicas=min_replicas, max_replicas=max_replicas)
        return Request("POST", _path(name, tenant_id, "scale"), ServiceAnswer, body=body)

    @Call
    def roll_back_service(self, name: str, *, tenant_id: str | None = None) -> Request[ServiceAnswer]:
        """Returns to the generation before."""
        return Request(
            "POST", _path(name, tenant_id, "rollback"), ServiceAnswer, body=NOTHING, is_repeatable=False
        )

    @Call
    def restart_service(self, name: str, *, tenant_id: str | None = None) -> Request[ServiceAnswer]:
        """Replaces its replicas one by one by new ones of the same task."""
        return Request(
            "POST", _path(name, tenant_id, "restart"), ServiceAnswer, body=NOTHING, is_repeatable=False
        )

    @Call
    def service_link(self, name: str, *, tenant_id: str | None = None) -> Request[PortLink]:
        """A link that opens the service in a browser, once."""
        return Request("POST", _path(name, tenant_id, "links"), PortLink, body=NOTHING, is_repeatable=False)

    @Call
    def delete_service(self, name: str, *, tenant_id: str | None = None) -> Request[None]:
        """Its replicas are cancelled."""
        return Request("DELETE", _path(name, tenant_id), answers.Removed).picking(lambda _: None)


def _path(name: str, tenant_id: str | None, *more: str) -> str:
    from urllib.parse import quote

    path = api_path("services", name, *more)
    return path if tenant_id is None else f"{path}?tenant_id={quote(tenant_id, safe='')}"
