"""The scheduler service: turns the configuration into the service's options."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dgpu.entry.alert_targets import alert_options
from dgpu.entry.config_types import (
    HealthSection,
    Redis,
    Retention,
    SchedulerConfig,
    SchedulerRules,
    Server,
    Storage,
    WorkerSection,
)
from dgpu.entry.ha_config import shared_options
from dgpu.entry.notify_targets import notice_options
from dgpu.entry.oidc import oidc_options
from dgpu.wire.address import MAX_PORT, Address, parse_address
from dgpu.wire.isolation import Isolation

if TYPE_CHECKING:
    from dgpu.core.model.health import HealthRules
    from dgpu.core.model.quota import Quota
    from dgpu.core.model.settings import Settings
    from dgpu.core.model.task import WorkerSetup
    from dgpu.core.model.tenant import Tenant
    from dgpu.service.content.store import ContentLimits
    from dgpu.service.options import HttpTls, MachineOptions, ProxyOptions, RedisOptions, ServiceOptions
    from dgpu.service.results.file import ResultLimits

_DAY_MS = 86_400_000


def run_scheduler(
    config: SchedulerConfig, *, accept_lost_tail: bool = False, accept_new_keys: bool = False
) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code."""
    import uvloop

    from dgpu.entry.ha.errors import HaFailure
    from dgpu.entry.ha.managed import member_beside
    from dgpu.entry.logs import set_up_logging
    from dgpu.journal.errors import JournalError
    from dgpu.service.options import OptionsRefused

    set_up_logging(config.logging)
    _claim_files()
    # gRPC warns of forks, which are intended. This is set before gRPC has threads: they read the environment, and a
    # change at the same time ends the process with SIGSEGV.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        options = service_options(config, accept_lost_tail=accept_lost_tail)
        options = msgspec.structs.replace(options, accept_new_keys=accept_new_keys)
        with member_beside(config):
            uvloop.run(_serve(options))
    except (OptionsRefused, JournalError, HaFailure, OSError) as error:
        return _failed(error)
    return 0


def _claim_files() -> None:
    """Raises the soft limit of open files, often 1,024, to the hard one, often a thousand times that."""
    import structlog

    from dgpu.file_limit import file_limit, raise_file_limit
    from dgpu.service.open_files import MIN_FILES

    raise_file_limit()
    if file_limit() < MIN_FILES:
        structlog.get_logger("dgpu.server").warning("file_limit_low", limit=file_limit(), wanted=MIN_FILES)


async def _serve(options: ServiceOptions) -> None:
    from dgpu.entry.event_log import EventLog
    from dgpu.service.server import serve

    events = EventLog(call_later=asyncio.get_running_loop().call_later)
    try:
        await serve(options, on_committed=events.on_committed, show_token=_first_token_shower())
    finally:
        events.flush()


def _first_token_shower() -> Callable[[str], None] | None:
    """None: the token would end in a log. Then the scheduler's own user creates one when it is needed."""
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return None
    is_log = stat.S_ISREG(mode) or stat.S_ISSOCK(mode)  # a file, as for `dgpu up`; or the journal of systemd
    return None if is_log else _show_token


def _show_token(token: str) -> None:
    """Written past the logger, to stdout only."""
    sys.stdout.write(
        f"Bootstrap token of this new cluster (role admin, valid for 7 days, shown only now):\n{token}\n"
        "Sign in with it: dgpu login, or the dashboard. Then create tokens for people: dgpu token create\n"
    )
    sys.stdout.flush()


def _failed(error: Exception) -> int:
    # Also to stderr, because the log may be a file.
    _say(f"dgpu scheduler: {error}")
    return 1


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def service_options(config: SchedulerConfig, *, accept_lost_tail: bool = False) -> ServiceOptions:
    from dgpu.service.history.audit_rows import AuditLimits
    from dgpu.service.machine.contact import AgentRules
    from dgpu.service.options import ServiceOptions

    return ServiceOptions(
        data_dir=data_dir(config),
        http=parse_address(config.server.http_address),
        grpc=parse_address(config.server.grpc_address),
        http_tls=_http_tls(config.server),
        proxy=_proxy(config.server),
        redis=_redis(config.integrations.redis),
        machines=_machines(config.server),
        auth_mode="none" if config.auth.mode == "none" else "",
        requests_per_second=config.auth.requests_per_second,
        oidc=oidc_options(config),
        allowed_hosts=config.server.allowed_hosts,
        settings=_settings(config),
        rules=AgentRules(
            heartbeat_timeout_ms=_ms(config.agent.heartbeat_timeout),
            task_lease_ms=_ms(config.agent.task_lease_seconds),
            lease_action=config.agent.lease_action,
            isolation=Isolation(users=config.isolation.users),
        ),
        notices=notice_options(config.notify, config.alerts.sending),
        max_grace_ms=_ms(config.scheduler.max_grace_seconds),
        schedule_interval_ms=_ms(config.scheduler.schedule_interval),
        snapshot_interval_ms=_ms(config.scheduler.snapshot_interval),
        journal_retention_bytes=_bytes(config.storage.journal_retention),
        journal_retention_ms=_age_ms(config.storage.journal_retention),
        uploads=_uploads(config.storage),
        log_retention_bytes=_bytes(config.storage.log_retention),
        log_retention_ms=_age_ms(config.storage.log_retention),
        log_head_bytes=config.storage.log_head_bytes,
        log_tail_bytes=config.storage.log_tail_bytes,
        telemetry_retention_bytes=_bytes(config.storage.telemetry_retention),
        telemetry_retention_ms=_age_ms(config.storage.telemetry_retention),
        audit=AuditLimits(
            max_entries=config.storage.audit_retention.entries,
            max_age_ms=config.storage.audit_retention.days * 86_400_000,
        ),
        results=_results(config.worker),
        worker_setup=_worker_setup(config.scheduler),
        segment_bytes=config.storage.segment_mb << 20,
        alerts=alert_options(config.alerts),
        accept_lost_tail=accept_lost_tail,
        shared=shared_options(config),
    )


def _results(worker: WorkerSection) -> ResultLimits:
    from dgpu.service.results.file import ResultLimits

    return ResultLimits(ttl_ms=_ms(worker.result_ttl_seconds), max_bytes=worker.result_mb << 20)


def _worker_setup(rules: SchedulerRules) -> WorkerSetup:
    from dgpu.core.model.task import WorkerSetup

    return WorkerSetup(
        app_id="",
        max_models=rules.max_models_per_gpu,
        model_ttl_ms=_ms(rules.model_cache_ttl_seconds),
        heartbeat_ms=_ms(rules.worker_heartbeat_interval_seconds),
        heartbeat_timeout_ms=_ms(rules.worker_heartbeat_timeout_seconds),
    )


def _uploads(storage: Storage) -> ContentLimits:
    from dgpu.service.content.store import ContentLimits

    return ContentLimits(
        max_bytes=storage.upload_max_mb << 20,
        tenant_bytes=int(storage.upload_tenant_gib * (1 << 30)),
        total_bytes=_bytes(storage.upload_retention),
        retention_s=_age_ms(storage.upload_retention) / 1_000,
    )


def _http_tls(server: Server) -> HttpTls | None:
    from dgpu.service.options import HttpTls
    from dgpu.service.proxy.names import parse_site

    if server.http_tls == "none":
        return None
    if server.http_tls == "files":
        files = (server.http_certificate_file, server.http_key_file)
        certificate_file, key_file = (str(Path(file).expanduser()) for file in files)
        return HttpTls(certificate_file=certificate_file, key_file=key_file)
    bound = parse_address(server.http_address).host
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *server.allowed_hosts]
    if bound not in {"", "0.0.0.0", "::"}:  # noqa: S104 - these mean every interface, and name none
        names.append(bound)
    if server.proxy_address != "off":
        names.append(f"*.{parse_site(server.proxy_url, port=0, has_tls=True).domain}")
    return HttpTls(names=tuple(dict.fromkeys(names)), certificate_lifetime_s=server.certificate_seconds)


def _proxy(server: Server) -> ProxyOptions | None:
    from dgpu.service.options import ProxyOptions

    if server.proxy_address == "off":
        return None
    if server.proxy_address:
        address = parse_address(server.proxy_address)
        return ProxyOptions(address=address, may_move=False, url=server.proxy_url)
    beside = parse_address(server.http_address).port
    port = beside + 1 if 0 < beside < MAX_PORT else 0
    taken = {parse_address(server.grpc_address).port}
    return ProxyOptions(
        address=Address(host="127.0.0.1", port=0 if port in taken else port), url=server.proxy_url
    )


def _redis(section: Redis) -> RedisOptions | None:
    from dgpu.service.options import RedisOptions

    return RedisOptions(url=section.url, prefix=section.prefix) if section.url else None


def _machines(server: Server) -> MachineOptions | None:
    from dgpu.service.options import MachineOptions

    if not server.grpc_tls:
        return None
    grpc = parse_address(server.grpc_address)
    beside = Address(host=grpc.host, port=grpc.port + 1 if grpc.port else 0)
    return MachineOptions(
        join=parse_address(server.join_address) if server.join_address else beside,
        certificate_lifetime_s=server.certificate_seconds,
    )


def data_dir(config: SchedulerConfig) -> Path:
    return Path(config.storage.snapshot_dir).expanduser().absolute()


def _settings(config: SchedulerConfig) -> Settings:
    from dgpu.core.model.settings import EstimateRules, Placement, Settings

    rules = config.scheduler
    return Settings(
        default_timeout_ms=_ms(rules.default_task_timeout_seconds),
        max_timeout_ms=_ms(rules.max_task_timeout_seconds),
        retry_delay_ms=_ms(rules.retry_delay_seconds),
        max_retry_delay_ms=_ms(rules.max_retry_delay_seconds),
        keep_finished=rules.keep_finished_tasks,
        keep_finished_ms=_ms(rules.keep_finished_seconds),
        max_waiting=rules.max_waiting_tasks,
        max_unsaved=rules.max_unsaved_tasks,
        max_keys=rules.max_idempotency_keys,
        max_tenant_keys=rules.max_idempotency_keys_per_tenant,
        ageing_ms=rules.ageing_minutes_per_point * 60_000,
        health=_health(config.health),
        quota=_quota(config),
        tenants=_tenants(config),
        creates_tenants=config.quota.unknown_tenants == "create",
        fair_share_half_life_ms=_ms(config.quota.fair_share_half_life_hours * 3_600),
        placement=Placement(rules.placement),
        memory_margin_mb=rules.memory_safety_margin_mb,
        memory_ramp_up_ms=_ms(rules.memory_ramp_up_seconds),
        max_models_per_gpu=rules.max_models_per_gpu,
        estimates=EstimateRules(
            base_mb=rules.estimates.default_base_mb,
            mb_per_atom_milli=round(rules.estimates.mb_per_atom * 1_000),
            atoms=rules.estimates.default_atoms,
            factors_milli={name: round(factor * 1_000) for name, factor in rules.estimates.factors.items()},
            models_mb=rules.estimates.models,
        ),
        reservations=config.backfill.reservations,
        share_enforcement=config.sharing.enforce,
        worker_idle_ms=_ms(config.worker.idle_seconds),
        worker_turn_ms=_ms(config.worker.turn_seconds),
    )


def _health(section: HealthSection) -> HealthRules:
    from dgpu.core.model.health import HealthRules

    return HealthRules(
        cool_down_ms=_ms(section.cool_down_seconds),
        give_up_ms=_ms(section.give_up_seconds),
        check_timeout_ms=_ms(section.check_timeout_seconds),
        parole_runs=section.parole_runs,
        parole_ms=_ms(section.parole_seconds),
        failures_in_a_row=section.failures_in_a_row,
        max_quarantines=section.max_quarantines,
        window_ms=_ms(section.quarantine_window_seconds),
    )


def _quota(config: SchedulerConfig) -> Quota:
    from dgpu.core.model.quota import MILLION, Quota, QuotaMode, Reclaim

    return Quota(
        online_ppm=round(config.quota.online_percent * MILLION),
        mode=QuotaMode(config.quota.mode),
        reclaim=Reclaim(config.quota.reclaim),
    )


def _tenants(config: SchedulerConfig) -> tuple[Tenant, ...]:
    """For a checked configuration; sorted, so that another order in the file is no change."""
    from dgpu.wire.tenant_fields import tenant_of

    tenants = [tenant for raw in config.tenants if (tenant := tenant_of(raw)[0]) is not None]
    return tuple(sorted(tenants, key=lambda tenant: tenant.id))


def _ms(seconds: float) -> int:
    # Not rounded down to 0, which means "none" to the core.
    return max(round(seconds * 1000), 1) if seconds else 0


def _bytes(retention: Retention) -> int:
    return round(retention.gib * (1 << 30))


def _age_ms(retention: Retention) -> int:
    return round(retention.days * _DAY_MS)
