"""Options of the service at its start. The entry package maps the configuration file to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from dgpu.core.model.settings import Settings
from dgpu.core.model.task import WorkerSetup
from dgpu.service.alerts.options import AlertOptions
from dgpu.service.content.store import ContentLimits
from dgpu.service.history.audit_rows import AuditLimits
from dgpu.service.machine.contact import AgentRules
from dgpu.service.notices.reach import NoticeOptions
from dgpu.service.oidc.options import OidcOptions
from dgpu.service.results.file import ResultLimits
from dgpu.service.task_output.intake import DEFAULT_HEAD_BYTES, DEFAULT_TAIL_BYTES
from dgpu.wire.address import Address
from dgpu.wire.setting_checks import why_exposed, why_lease_short, why_plain_text

if TYPE_CHECKING:
    from dgpu.journal.etcd.settings import EtcdSettings


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Agents use TLS and have certificates of the cluster's authority."""

    join: Address
    certificate_lifetime_s: int = 30 * 86_400


class HttpTls(msgspec.Struct, frozen=True, kw_only=True):
    """REST over TLS. Without files, certificates are of the cluster's authority."""

    certificate_file: str = ""
    key_file: str = ""
    names: tuple[str, ...] = ()  # host names and addresses in certificates of the cluster's authority
    certificate_lifetime_s: int = 30 * 86_400


class ProxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The port through which browsers reach ports of tasks."""

    address: Address
    may_move: bool = True  # to any free port, if this one is taken
    url: str = ""  # for browsers, like https://*.apps.example.org; empty: names below localhost


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A Redis that gets a picture of the queue."""

    url: str
    prefix: str = ""


class ServedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the service, with the ports that were chosen."""

    http: Address
    grpc: Address
    epoch: int
    role: Literal["master", "standby"] = "master"


class TrimRules(msgspec.Struct, frozen=True, kw_only=True):
    """When the leader stores a snapshot in the engine and deletes groups that it covers."""

    look_s: float = 10.0
    max_groups: int = 50_000  # in the engine since its snapshot
    max_bytes: int = 128 << 20  # of groups, before packing
    times_snapshot: int = (
        4  # and at least this many times the size of the last snapshot, which must be worth its cost
    )
    nearly_full: float = 0.5  # of the quota: then fewer groups are kept
    few_groups: int = 1_000


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Other schedulers of the cluster may take over. The journal is in an engine."""

    name: str
    http: str  # URL of this scheduler for people
    grpc: str  # address of this scheduler for agents
    etcd: EtcdSettings | None = None  # None: the caller brings the engine
    read_stale_max_ms: int = 30_000
    trim: TrimRules = TrimRules()
    digest_groups: int = 10_000  # the states of master and standby are compared every so many groups


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Path
    http: Address = Address(host="127.0.0.1", port=8080)
    grpc: Address = Address(host="127.0.0.1", port=9090)
    http_tls: HttpTls | None = None
    proxy: ProxyOptions | None = None  # None: ports of tasks are reached by dgpu forward only
    redis: RedisOptions | None = None  # None: no mirror
    machines: MachineOptions | None = None  # None: agents use plain text
    auth_mode: Literal["", "none"] = ""  # "none" must be written explicitly
    requests_per_second: float = 0  # of one principal; 0: no limit
    oidc: OidcOptions | None = None  # None: no identity provider
    allowed_hosts: tuple[str, ...] = ()  # beside the local names, for the Host header
    settings: Settings = Settings()
    rules: AgentRules = AgentRules()
    notices: NoticeOptions = NoticeOptions()
    max_grace_ms: int = 300_000  # from TERM to KILL, of one task
    schedule_interval_ms: int = 5_000
    snapshot_interval_ms: int = 30_000
    journal_retention_bytes: int = 10 << 30
    journal_retention_ms: int = 30 * 86_400_000
    log_retention_bytes: int = 10 << 30
    log_retention_ms: int = 30 * 86_400_000
    log_head_bytes: int = DEFAULT_HEAD_BYTES  # the first bytes kept of each attempt
    log_tail_bytes: int = DEFAULT_TAIL_BYTES  # the last bytes kept of each attempt
    uploads: ContentLimits = ContentLimits()
    telemetry_retention_bytes: int = 2 << 30
    telemetry_retention_ms: int = 91 * 86_400_000
    audit: AuditLimits = AuditLimits()
    results: ResultLimits = ResultLimits()
    worker_setup: WorkerSetup = WorkerSetup(app_id="")  # settings that all workers share
    segment_bytes: int = 32 << 20  # of one journal file
    alerts: AlertOptions | None = AlertOptions()  # None: no alerts
    accept_lost_tail: bool = False  # set by an operator, for this start
    accept_new_keys: bool = False  # set by an operator, for this start
    shared: SharedOptions | None = None  # None: a lone scheduler


class OptionsRefused(ValueError):  # noqa: N818 - the name states the failure
    """The service does not start with these options; the text names the required change."""


def check_options(options: ServiceOptions) -> None:
    if why := why_exposed(options.http, options.auth_mode, has_tls=options.http_tls is not None):
        raise OptionsRefused(f"server.http_address: {why}.")
    if options.proxy is not None:
        why = why_exposed(options.proxy.address, options.auth_mode, has_tls=options.http_tls is not None)
        if why and not options.proxy.url.startswith("https:"):
            raise OptionsRefused(f"server.proxy_address: {why}.")
    if why := why_plain_text(options.grpc, options.auth_mode, has_tls=options.machines is not None):
        raise OptionsRefused(f"server.grpc_address: {why}.")
    if why := why_lease_short(options.rules.task_lease_ms, options.rules.heartbeat_timeout_ms):
        raise OptionsRefused(f"agent.task_lease_seconds: {why}.")
    if options.shared is not None and options.accept_lost_tail:
        raise OptionsRefused(
            "--accept-lost-tail: with storage.journal etcd, the engine has the whole journal."
        )
    if options.shared is None and options.accept_new_keys:
        raise OptionsRefused(
            "--accept-new-keys: a single scheduler (storage.journal: file) uses the keys it has."
        )
