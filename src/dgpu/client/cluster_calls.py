"""Calls about nodes, GPUs, quotas, tenants and the scheduler itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dgpu.client.call import Call
from dgpu.client.fields import QuotaFields, TenantFields
from dgpu.client.request import NOTHING, Request, api_path, given
from dgpu.wire import answers
from dgpu.wire.cluster_answers import (
    GpuAnswer,
    GpuList,
    NodeAnswer,
    NodeList,
    QuotaAnswer,
    QuotaEffect,
    TenantAnswer,
    TenantList,
)
from dgpu.wire.scheduler_answers import SchedulerList


class ClusterCalls:
    @Call
    def gpus(self) -> Request[GpuList]:
        """All GPUs with their latest measurements."""
        return Request("GET", api_path("gpus"), GpuList)

    @Call
    def recover_gpu(self, gpu_id: str, *, reason: str = "") -> Request[GpuAnswer]:
        """Starts the check of a GPU that was taken out of service, after its repair."""
        path = api_path("gpus", gpu_id, "recover")
        return Request("POST", path, GpuAnswer, body=given(reason=reason or None))

    @Call
    def nodes(self) -> Request[NodeList]:
        """All nodes."""
        return Request("GET", api_path("nodes"), NodeList)

    @Call
    def drain(self, node_id: str, *, reason: str = "") -> Request[NodeAnswer]:
        """Starts no more tasks on a node. Its running tasks continue."""
        return _node_order(node_id, "drain", reason)

    @Call
    def resume(self, node_id: str) -> Request[NodeAnswer]:
        """Lets a drained node start tasks again."""
        return _node_order(node_id, "resume")

    @Call
    def give_up(self, node_id: str, *, reason: str = "") -> Request[NodeAnswer]:
        """Confirms that nothing runs on a lost node any more, so that its tasks can start elsewhere."""
        return _node_order(node_id, "lost", reason)

    @Call
    def remove_node(self, node_id: str) -> Request[None]:
        """Forgets a node that is offline and runs no task."""
        return _remove(api_path("nodes", node_id))

    @Call
    def schedulers(self) -> Request[SchedulerList]:
        """All schedulers with their role and lag, and the members of the engine of their journal."""
        return Request("GET", api_path("schedulers"), SchedulerList)

    @Call
    def quota(self) -> Request[QuotaAnswer]:
        """Quotas of the pools and tenants, and their usage."""
        return Request("GET", api_path("quota"), QuotaAnswer)

    @Call
    def set_quota(self, **change: Unpack[QuotaFields]) -> Request[QuotaAnswer]:
        """Changes the quota. An absent field does not change."""
        return Request("PUT", api_path("quota"), QuotaAnswer, body=given(**change))

    @Call
    def try_quota(self, **change: Unpack[QuotaFields]) -> Request[QuotaEffect]:
        """Changes nothing: returns the tasks that would start, wait, drain or be stopped."""
        return Request("PUT", api_path("quota", dry_run="true"), QuotaEffect, body=given(**change))

    @Call
    def tenants(self) -> Request[Sequence[TenantAnswer]]:
        """All tenants with their limits and usage."""
        return Request("GET", api_path("tenants"), TenantList).picking(lambda found: found.tenants)

    @Call
    def tenant(self, tenant_id: str) -> Request[TenantAnswer]:
        """One tenant with its limits and usage."""
        return Request("GET", api_path("tenants", tenant_id), TenantAnswer)

    @Call
    def create_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> Request[TenantAnswer]:
        """Creates a tenant. Refused if the name exists."""
        body = given(id=tenant_id, **limits)
        return Request("POST", api_path("tenants"), TenantAnswer, body=body, is_repeatable=False)

    @Call
    def set_tenant(self, tenant_id: str, **limits: Unpack[TenantFields]) -> Request[TenantAnswer]:
        """Sets all limits of a tenant; creates it if it does not exist."""
        return Request("PUT", api_path("tenants", tenant_id), TenantAnswer, body=given(**limits))

    @Call
    def remove_tenant(self, tenant_id: str) -> Request[None]:
        """Refused while the tenant has waiting or running tasks."""
        return _remove(api_path("tenants", tenant_id))

    @Call
    def board(self) -> Request[Mapping[str, Any]]:
        """The cluster at a glance, in the form of the dashboard: see the description of the API."""
        return Request("GET", api_path("board"), dict[str, Any])

    @Call
    def session(self) -> Request[answers.SessionAnswer]:
        """The caller's access: open, user, token or cookie."""
        return Request("GET", api_path("session"), answers.SessionAnswer)

    @Call
    def session_code(self) -> Request[answers.SessionCode]:
        """Creates a one-time code that opens the dashboard in any browser."""
        return Request("POST", api_path("session", "code"), answers.SessionCode, body=NOTHING)

    @Call
    def health(self) -> Request[answers.Health]:
        """Answers while the scheduler's process runs."""
        return Request("GET", "/health", answers.Health)

    @Call
    def ready(self) -> Request[answers.Ready]:
        """Whether the scheduler is ready, and its role."""
        return Request("GET", "/ready", answers.Ready)


def _node_order(node_id: str, order: str, reason: str = "") -> Request[NodeAnswer]:
    path = api_path("nodes", node_id, order)
    return Request("POST", path, NodeAnswer, body=given(reason=reason or None))


def _remove(path: str) -> Request[None]:
    return Request("DELETE", path, answers.Removed).picking(lambda _: None)
