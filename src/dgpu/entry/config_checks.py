"""Checks beyond types: addresses, keys that depend on each other, and values that this version does not support."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import check_cards, parse_cards
from dgpu.core.model.tenant import MAX_TENANTS
from dgpu.entry.alert_targets import check_alerts
from dgpu.entry.config_problem import Problem
from dgpu.entry.config_types import AgentConfig, Quota, SchedulerConfig, Server
from dgpu.entry.container_config import check_containers
from dgpu.entry.ha_config import check_ha
from dgpu.entry.notify_targets import check_notify
from dgpu.entry.oidc import check_oidc
from dgpu.wire import isolation
from dgpu.wire.address import MAX_PORT, Address, address_list, parse_address
from dgpu.wire.setting_checks import why_exposed, why_lease_short, why_plain_text

_UNIX_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._@-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def check_scheduler(config: SchedulerConfig) -> Iterator[Problem]:
    yield from _check_server(config)
    rules = config.scheduler
    longest, default = rules.max_task_timeout_seconds, rules.default_task_timeout_seconds
    if longest and default > longest:
        yield Problem(
            "scheduler.default_task_timeout_seconds",
            f"is {default:g}, more than scheduler.max_task_timeout_seconds ({longest:g})",
        )
    if rules.max_retry_delay_seconds < rules.retry_delay_seconds:
        yield Problem("scheduler.max_retry_delay_seconds", "is less than scheduler.retry_delay_seconds")
    if why := why_lease_short(config.agent.task_lease_seconds, config.agent.heartbeat_timeout):
        yield Problem("agent.task_lease_seconds", why)
    yield from _check_directory("storage.snapshot_dir", config.storage.snapshot_dir)
    yield from _check_quota(config.quota)
    yield from _check_tenants(config.tenants)
    yield from _check_users(config.isolation.users)
    yield from check_alerts(config.alerts)
    yield from check_notify(config.notify)
    yield from check_oidc(config)
    yield from check_ha(config)
    yield from _check_logging(config.logging.output)
    yield from _scheduler_not_yet(config)


def check_agent(config: AgentConfig) -> Iterator[Problem]:
    yield from _check_addresses("scheduler.master_address", config.scheduler.master_address)
    if config.scheduler.standby_address:
        yield from _check_addresses("scheduler.standby_address", config.scheduler.standby_address)
    if config.scheduler.max_retry_interval < config.scheduler.retry_interval:
        yield Problem("scheduler.max_retry_interval", "is less than scheduler.retry_interval")
    simulated_cards = config.gpu.detection_method is DetectionMethod.SIMULATED
    if config.executor.execution_method == "simulated" and not simulated_cards:
        yield Problem(
            "executor.execution_method",
            "simulated needs gpu.detection_method: simulated, so that no real GPU is given to a task that runs nothing",
        )
    yield from check_containers(config)
    yield from _check_directory("executor.work_dir", config.executor.work_dir)
    if config.executor.tasks_dir:
        yield from _check_directory("executor.tasks_dir", config.executor.tasks_dir)
    if config.scheduler.tls.dir:
        yield from _check_directory("scheduler.tls.dir", config.scheduler.tls.dir)
    yield from _check_gpu(config)
    yield from _check_logging(config.logging.output)


def heartbeat_doubt(interval: float, timeout: float) -> str | None:
    """For `up`, which knows both services. The agent then shortens its interval."""
    if interval <= timeout / 3:
        return None
    return (
        f"agent.heartbeat_interval ({interval:g} s) is more than a third of agent.heartbeat_timeout ({timeout:g} s): "
        f"nodes would often be offline. The agent will send a heartbeat every {timeout / 3:.3g} s."
    )


def _check_gpu(config: AgentConfig) -> Iterator[Problem]:
    gpu = config.gpu
    yield from _check_ids("gpu.gpu_ids", gpu.gpu_ids)
    yield from _check_ids("gpu.reserved_gpu_ids", gpu.reserved_gpu_ids)
    try:
        if isinstance(gpu.simulated, str):
            parse_cards(gpu.simulated)
        else:
            check_cards(gpu.simulated)
    except ValueError as error:
        yield Problem("gpu.simulated", str(error))
    simulated = gpu.detection_method is DetectionMethod.SIMULATED
    if simulated and not gpu.simulated:
        yield Problem("gpu.simulated", "expected at least one GPU, because gpu.detection_method is simulated")
    if config.agent.simulated_nodes > 1 and not simulated:
        yield Problem("agent.simulated_nodes", "more than 1 needs gpu.detection_method: simulated")


def _check_ids(path: str, ids: tuple[int | str, ...]) -> Iterator[Problem]:
    """Checks only for impossible values: a GPU that is missing now may appear later."""
    for number, given in enumerate(ids):
        text = str(given).strip()
        if not text or text.startswith("-"):
            yield Problem(f"{path}[{number}]", f"expected an index of 0 or more, or a UUID, got {given!r}")


def _check_server(config: SchedulerConfig) -> Iterator[Problem]:
    parsed: dict[str, Address] = {}
    for path, text in (
        ("server.grpc_address", config.server.grpc_address),
        ("server.http_address", config.server.http_address),
    ):
        problems = list(_check_address(path, text, dialled=False))
        yield from problems
        if problems:
            continue
        parsed[path] = parse_address(text)
        if why := _why_open(path, parsed[path], config):
            yield Problem(path, why)
    yield from _check_join(config, parsed.get("server.grpc_address"))
    yield from _check_https(config.server)
    yield from _check_proxy(config)
    yield from _check_redis(config.integrations.redis.url)
    yield from _check_hosts(config.server.allowed_hosts)
    if len(parsed) > 1 and len(set(parsed.values())) == 1 and parsed["server.http_address"].port:
        yield Problem("server.http_address", "is the same as server.grpc_address")


def _why_open(path: str, address: Address, config: SchedulerConfig) -> str | None:
    if path == "server.grpc_address":
        return why_plain_text(address, config.auth.mode, has_tls=config.server.grpc_tls)
    return why_exposed(address, config.auth.mode, has_tls=config.server.http_tls != "none")


def _check_join(config: SchedulerConfig, grpc: Address | None) -> Iterator[Problem]:
    path, written = "server.join_address", config.server.join_address
    if written:
        yield from _check_address(path, written, dialled=False)
    if written and not config.server.grpc_tls:
        yield Problem(path, "needs server.grpc_tls: true; without it, no machine has to join")
    if not written and config.server.grpc_tls and grpc is not None and grpc.port == MAX_PORT:
        yield Problem(path, f"is needed, because no port follows {grpc.port} of server.grpc_address")


def _check_redis(url: str) -> Iterator[Problem]:
    from dgpu.service.redis.resp import parse_url

    try:
        if url:
            parse_url(url)
    except ValueError as error:
        yield Problem("integrations.redis.url", str(error))


def _check_proxy(config: SchedulerConfig) -> Iterator[Problem]:
    from dgpu.service.proxy.names import parse_site

    written, url = config.server.proxy_address, config.server.proxy_url
    try:
        parse_site(url, port=0, has_tls=False)
    except ValueError as error:
        yield Problem("server.proxy_url", str(error))
    if written in {"", "off"}:
        return
    problems = list(_check_address("server.proxy_address", written, dialled=False))
    yield from problems
    if problems:
        return
    has_tls = config.server.http_tls != "none" or url.startswith("https:")
    if why := why_exposed(parse_address(written), config.auth.mode, has_tls=has_tls):
        yield Problem("server.proxy_address", why)
    if written in {config.server.http_address, config.server.grpc_address} and parse_address(written).port:
        yield Problem("server.proxy_address", "is the same as another address of this scheduler")


def _check_https(server: Server) -> Iterator[Problem]:
    for path, written in (
        ("server.http_certificate_file", server.http_certificate_file),
        ("server.http_key_file", server.http_key_file),
    ):
        if server.http_tls == "files":
            yield from _check_directory(path, written)
        elif written:
            yield Problem(path, f"needs server.http_tls: files, which is {server.http_tls}")


def _check_hosts(hosts: tuple[str, ...]) -> Iterator[Problem]:
    """Host headers are compared as whole names: a pattern or a port here would silently match nothing."""
    for number, host in enumerate(hosts):
        path = f"server.allowed_hosts[{number}]"
        if "*" in host:
            yield Problem(
                path,
                f"{host!r} is a pattern, but the list takes only whole names (gpu.example.org). The check stops web "
                "pages that use their own name for this address; IP addresses and localhost are always allowed",
            )
        elif not _HOST_NAME.fullmatch(host):
            yield Problem(
                path, f"expected a host name without port or scheme, such as gpu.example.org, got {host!r}"
            )


def _check_quota(quota: Quota) -> Iterator[Problem]:
    both = quota.online_percent + quota.batch_percent
    if abs(both - 1) > 1e-9:
        yield Problem(
            "quota.batch_percent",
            f"is {quota.batch_percent:g}; with quota.online_percent ({quota.online_percent:g}) it must add up to 1",
        )


def _check_tenants(tenants: tuple[dict[str, object], ...]) -> Iterator[Problem]:
    from dgpu.wire.tenant_fields import tenant_of

    seen: set[object] = set()
    for number, raw in enumerate(tenants):
        tenant, errors = tenant_of(raw)
        for error in errors:
            yield Problem(
                f"tenants[{number}].{error.path}", f"{error.detail[:1].lower()}{error.detail[1:-1]}"
            )
        if tenant is not None and tenant.id in seen:
            yield Problem(f"tenants[{number}].id", f"{tenant.id!r} is listed twice")
        if tenant is not None:
            seen.add(tenant.id)
    if len(tenants) > MAX_TENANTS:
        yield Problem("tenants", f"at most {MAX_TENANTS} can be listed")


def _check_users(users: str | dict[str, str]) -> Iterator[Problem]:
    if isinstance(users, dict):
        if not users:
            yield Problem(isolation.KEY, f"expected {isolation.EXPECTED}, got an empty map")
        for tenant, user in users.items():
            if not _UNIX_USER.fullmatch(user):
                yield Problem(f"{isolation.KEY}.{tenant}", f"expected the name of a Unix user, got {user!r}")
            elif user == "root":
                yield Problem(f"{isolation.KEY}.{tenant}", "tasks never run as root")
        return
    if users in {"", isolation.NONE}:
        return
    try:
        if isolation.uid_range(users) is None:
            yield Problem(isolation.KEY, f"expected {isolation.EXPECTED}, got {users!r}")
    except ValueError as error:
        yield Problem(isolation.KEY, str(error))


def _check_addresses(path: str, text: str) -> Iterator[Problem]:
    """Several are separated by commas."""
    for address in address_list(text) or [text]:
        yield from _check_address(path, address, dialled=True)


def _check_address(path: str, text: str, *, dialled: bool) -> Iterator[Problem]:
    try:
        address = parse_address(text)
    except ValueError as error:
        yield Problem(path, str(error))
        return
    if dialled and (not address.host or not address.port):
        yield Problem(path, f"expected the host and port to connect to, got {text!r}")


def _check_directory(path: str, text: str) -> Iterator[Problem]:
    """Refuses a relative path: it would mean another directory after a start from elsewhere, without the tasks."""
    try:
        is_absolute = Path(text).expanduser().is_absolute()
    except RuntimeError:  # an unknown home directory
        is_absolute = False
    if not is_absolute:
        got = repr(text) if text else "an empty text"
        yield Problem(path, f"expected an absolute path such as /var/lib/dgpu or ~/dgpu, got {got}")


def _check_logging(output: str) -> Iterator[Problem]:
    if not output:
        yield Problem("logging.output", "expected stderr, stdout or a file, got an empty text")


def _scheduler_not_yet(config: SchedulerConfig) -> Iterator[Problem]:
    """Refuses values of missing features, so that nobody relies on them."""
    if config.scheduler.role == "standby" and config.ha.mode == "off":
        yield Problem(
            "scheduler.role", "standby needs ha.mode: external; the schedulers then decide who leads"
        )
    if config.auth.mode == "token":
        yield _not_yet("auth.mode", "tokens with roles")
    rules = config.scheduler
    if rules.worker_heartbeat_timeout_seconds < 2 * rules.worker_heartbeat_interval_seconds:
        yield Problem(
            "scheduler.worker_heartbeat_timeout_seconds",
            f"expected at least twice worker_heartbeat_interval_seconds "
            f"({rules.worker_heartbeat_interval_seconds:g}), got {rules.worker_heartbeat_timeout_seconds:g}",
        )


def _not_yet(path: str, feature: str) -> Problem:
    return Problem(path, f"{feature} is not available yet in this version")
