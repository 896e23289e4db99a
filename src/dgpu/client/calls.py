"""All calls that have one request and one answer. Calls that stream or repeat are methods of the clients."""

from __future__ import annotations

from dgpu.client.alert_calls import AlertCalls
from dgpu.client.audit_calls import AuditCalls
from dgpu.client.channel_calls import ChannelCalls
from dgpu.client.cluster_calls import ClusterCalls
from dgpu.client.file_calls import FileCalls
from dgpu.client.function_calls import FunctionCalls
from dgpu.client.history_calls import HistoryCalls
from dgpu.client.secret_calls import SecretCalls
from dgpu.client.service_calls import ServiceCalls
from dgpu.client.task_calls import TaskCalls
from dgpu.client.token_calls import TokenCalls
from dgpu.client.upload_calls import UploadCalls


class Calls(
    TaskCalls,
    ClusterCalls,
    AlertCalls,
    HistoryCalls,
    FileCalls,
    ChannelCalls,
    TokenCalls,
    SecretCalls,
    ServiceCalls,
    AuditCalls,
    UploadCalls,
    FunctionCalls,
):
    pass
