"""Every call of the API and its action. A call that is missing here stops the start of the service."""

from __future__ import annotations

from typing import Final

from dgpu.service.access.table import Action

A = Action

OPERATIONS: Final[dict[str, Action]] = {
    "POST /api/v1/tasks": A.SUBMIT_TASK,
    "POST /api/v1/tasks/batch": A.SUBMIT_TASK,
    "POST /api/tasks": A.SUBMIT_TASK,
    "POST /api/v1/tasks/{task_id}/retry": A.SUBMIT_TASK,
    "GET /api/v1/uploads": A.SUBMIT_TASK,
    "GET /api/v1/uploads/{sha256}": A.SUBMIT_TASK,
    "PUT /api/v1/uploads/{sha256}": A.SUBMIT_TASK,
    "GET /api/v1/tasks": A.LIST_TASKS,
    "GET /api/v1/queue": A.LIST_TASKS,
    "GET /api/v1/tasks/{task_id}": A.READ_TASK,
    "GET /api/tasks/{task_id}": A.READ_TASK,
    "GET /api/v1/tasks/{task_id}/events": A.READ_TASK,
    "GET /api/v1/tasks/{task_id}/why": A.READ_TASK,
    "GET /api/v1/tasks/{task_id}/logs": A.READ_OUTPUT,
    "GET /api/v1/tasks/{task_id}/output": A.READ_OUTPUT,
    "GET /api/v1/tasks/{task_id}/result": A.READ_OUTPUT,
    "GET /api/v1/tasks/{task_id}/result/content": A.READ_OUTPUT,
    "POST /api/v1/tasks/results": A.READ_OUTPUT,
    "GET /api/v1/workers": A.LIST_TASKS,
    "GET /api/v1/tasks/{task_id}/files": A.READ_OUTPUT,
    "GET /api/v1/tasks/{task_id}/files/{file_path}": A.READ_OUTPUT,
    "POST /api/v1/tasks/{task_id}/channels": A.ENTER_TASK,
    "GET /api/v1/channels/{channel_id}": A.ENTER_TASK,
    "POST /api/v1/tasks/{task_id}/links": A.ENTER_TASK,
    "GET /api/v1/services": A.LIST_TASKS,
    "GET /api/v1/services/{name}": A.READ_TASK,
    "PUT /api/v1/services/{name}": A.SUBMIT_TASK,
    "POST /api/v1/services/{name}/scale": A.CHANGE_TASK,
    "POST /api/v1/services/{name}/rollback": A.CHANGE_TASK,
    "POST /api/v1/services/{name}/restart": A.CHANGE_TASK,
    "POST /api/v1/services/{name}/links": A.ENTER_TASK,
    "DELETE /api/v1/services/{name}": A.CHANGE_TASK,
    "DELETE /api/v1/tasks/{task_id}": A.CHANGE_TASK,
    "POST /api/v1/tasks/cancel": A.CHANGE_TASK,
    "POST /api/v1/tasks/{task_id}/hold": A.CHANGE_TASK,
    "POST /api/v1/tasks/{task_id}/release": A.CHANGE_TASK,
    "POST /api/v1/tasks/{task_id}/priority": A.CHANGE_TASK,
    "GET /api/v1/tenants": A.READ_TENANT,
    "GET /api/v1/tenants/{tenant_id}": A.READ_TENANT,
    "GET /api/v1/quota": A.READ_TENANT,
    "GET /api/v1/estimates": A.READ_TENANT,
    "GET /api/v1/history/usage": A.READ_TENANT,
    "GET /api/monitor/metrics": A.READ_TENANT,
    "POST /api/v1/tenants": A.CHANGE_TENANT,
    "PUT /api/v1/tenants/{tenant_id}": A.CHANGE_TENANT,
    "DELETE /api/v1/tenants/{tenant_id}": A.CHANGE_TENANT,
    "PUT /api/v1/quota": A.CHANGE_TENANT,
    "GET /api/v1/nodes": A.READ_CLUSTER,
    "GET /api/v1/nodes/{node_id}": A.READ_CLUSTER,
    "GET /api/v1/gpus": A.READ_CLUSTER,
    "GET /api/v1/schedulers": A.READ_CLUSTER,
    "GET /api/v1/history/gpus": A.READ_CLUSTER,
    "GET /api/v1/history/gpus/{gpu_id}": A.READ_CLUSTER,
    "GET /api/v1/history/nodes/{node_id}": A.READ_CLUSTER,
    "GET /api/v1/history/cluster": A.READ_CLUSTER,
    "GET /api/v1/history/queue": A.READ_CLUSTER,
    "POST /api/v1/nodes/{node_id}/drain": A.CHANGE_CLUSTER,
    "POST /api/v1/nodes/{node_id}/resume": A.CHANGE_CLUSTER,
    "POST /api/v1/nodes/{node_id}/lost": A.CHANGE_CLUSTER,
    "DELETE /api/v1/nodes/{node_id}": A.CHANGE_CLUSTER,
    "POST /api/v1/gpus/{gpu_id}/recover": A.CHANGE_CLUSTER,
    "GET /api/v1/board": A.WATCH_CLUSTER,
    "GET /api/v1/board/stream": A.WATCH_CLUSTER,
    "GET /api/v1/events": A.WATCH_CLUSTER,
    "GET /metrics": A.WATCH_CLUSTER,
    "GET /api/v1/history/timeline": A.LIST_TASKS,
    "GET /api/v1/history/nodes/{node_id}/health": A.WATCH_CLUSTER,
    "GET /api/v1/alerts": A.READ_ALERT,
    "GET /api/v1/alerts/{alert_id}": A.READ_ALERT,
    "GET /api/v1/alerts/silences": A.READ_ALERT,
    "GET /api/v1/alerts/silences/{silence_id}": A.READ_ALERT,
    "GET /api/v1/alerts/targets": A.READ_TARGET,
    "POST /api/v1/alerts/{alert_id}/acknowledge": A.CHANGE_ALERT,
    "POST /api/v1/alerts/silences": A.CHANGE_ALERT,
    "DELETE /api/v1/alerts/silences/{silence_id}": A.CHANGE_ALERT,
    "POST /api/v1/alerts/test": A.CHANGE_ALERT,
    "POST /api/v1/whatif": A.PREDICT,
    "GET /api/v1/tokens": A.READ_TOKEN,
    "POST /api/v1/tokens": A.CHANGE_TOKEN,
    "DELETE /api/v1/tokens/{token_id}": A.CHANGE_TOKEN,
    "GET /api/v1/secrets": A.READ_SECRET,
    "PUT /api/v1/tenants/{tenant_id}/secrets/{name}": A.CHANGE_SECRET,
    "DELETE /api/v1/tenants/{tenant_id}/secrets/{name}": A.CHANGE_SECRET,
    "POST /api/v1/secrets/rotate": A.ROTATE_SECRETS,
    "GET /api/v1/audit": A.READ_AUDIT,
    "GET /api/v1/audit/export": A.READ_AUDIT,
    "POST /api/v1/session/code": A.OPEN_SESSION,
    "GET /api/v1/session": A.READ_SELF,
    "DELETE /api/v1/session": A.READ_SELF,
    "GET /api/v1/whoami": A.READ_SELF,
    "GET /openapi.json": A.READ_SELF,
    "GET /docs": A.READ_SELF,
}
# Calls that need no identity: probes, and a browser that signs in. OPTIONS never needs one of these rows.
OPEN_OPERATIONS: Final = frozenset(
    {
        "GET /health",
        "GET /ready",
        "GET /api/v1/session/methods",
        "POST /api/v1/session",
        "POST /api/v1/session/oidc",
    }
)

# Calls without a name in their path, by method and path: the front looks them up for each request.
FIXED: Final[dict[tuple[str, str], Action]] = {
    (method, path): action
    for (method, path), action in ((tuple(name.split(" ")), action) for name, action in OPERATIONS.items())
    if "{" not in path
} | {("HEAD", "/metrics"): A.WATCH_CLUSTER}
