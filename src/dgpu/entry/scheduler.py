"""The scheduler service: its configuration becomes the service's options."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dgpu.entry.config_checks import parse_address
from dgpu.entry.config_types import Retention, SchedulerConfig

if TYPE_CHECKING:
    from dgpu.core.settings import Settings
    from dgpu.service.options import Address, ServiceOptions

_DAY_MS = 86_400_000


def run_scheduler(config: SchedulerConfig) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code."""
    import uvloop

    from dgpu.entry.logs import set_up_logging
    from dgpu.journal.errors import JournalError
    from dgpu.service.options import OptionsRefused

    set_up_logging(config.logging)
    # gRPC's own notes go past our log and are about forks that we make on purpose.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        uvloop.run(_serve(service_options(config)))
    except (OptionsRefused, JournalError, OSError) as error:
        return _failed(error)
    return 0


def rebuild_history(config: SchedulerConfig) -> int:
    """Makes the history anew from the journal, while no scheduler runs on the directory."""
    from dgpu.journal.errors import JournalError
    from dgpu.service import history_rebuild

    try:
        history_rebuild.rebuild_history(data_dir(config), _say)
    except (JournalError, OSError) as error:
        return _failed(error)
    return 0


async def _serve(options: ServiceOptions) -> None:
    from dgpu.entry.event_log import EventLog
    from dgpu.service.server import serve

    events = EventLog(call_later=asyncio.get_running_loop().call_later)
    try:
        await serve(options, on_committed=events.on_committed)
    finally:
        events.flush()


def _failed(error: Exception) -> int:
    # To stderr and not only to the log, which may be a file nobody looks at.
    _say(f"dgpu scheduler: {error}")
    return 1


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def service_options(config: SchedulerConfig) -> ServiceOptions:
    from dgpu.service.contact import AgentRules
    from dgpu.service.options import ServiceOptions

    return ServiceOptions(
        data_dir=data_dir(config),
        http=_address(config.server.http_address),
        grpc=_address(config.server.grpc_address),
        auth_mode="none" if config.auth.mode == "none" else "",
        allowed_hosts=config.server.allowed_hosts,
        settings=_settings(config),
        rules=AgentRules(
            heartbeat_timeout_ms=_ms(config.agent.heartbeat_timeout),
            task_lease_ms=_ms(config.agent.task_lease_seconds),
            lease_action=config.agent.lease_action,
        ),
        schedule_interval_ms=_ms(config.scheduler.schedule_interval),
        snapshot_interval_ms=_ms(config.scheduler.snapshot_interval),
        journal_retention_bytes=_bytes(config.storage.journal_retention),
        journal_retention_ms=_age_ms(config.storage.journal_retention),
        log_retention_bytes=_bytes(config.storage.log_retention),
        log_retention_ms=_age_ms(config.storage.log_retention),
        segment_bytes=config.storage.segment_mb << 20,
    )


def data_dir(config: SchedulerConfig) -> Path:
    return Path(config.storage.snapshot_dir).expanduser().absolute()


def _settings(config: SchedulerConfig) -> Settings:
    from dgpu.core.settings import Settings

    rules = config.scheduler
    return Settings(
        default_timeout_ms=_ms(rules.default_task_timeout_seconds),
        max_timeout_ms=_ms(rules.max_task_timeout_seconds),
        retry_delay_ms=_ms(rules.retry_delay_seconds),
        max_retry_delay_ms=_ms(rules.max_retry_delay_seconds),
        keep_finished=rules.keep_finished_tasks,
        keep_finished_ms=_ms(rules.keep_finished_seconds),
        most_waiting=rules.max_waiting_tasks,
    )


def _address(text: str) -> Address:
    from dgpu.service.options import Address

    host, port = parse_address(text)
    return Address(host=host, port=port)


def _ms(seconds: float) -> int:
    # Not rounded down to 0, which means "none" to the core.
    return max(round(seconds * 1000), 1) if seconds else 0


def _bytes(retention: Retention) -> int:
    return round(retention.gib * (1 << 30))


def _age_ms(retention: Retention) -> int:
    return round(retention.days * _DAY_MS)
