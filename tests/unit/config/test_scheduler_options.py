from __future__ import annotations

from pathlib import Path

from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.model.tenant import Tenant
from dgpu.entry.config import load_scheduler_config
from dgpu.entry.config_types import SchedulerConfig
from dgpu.entry.scheduler import service_options
from dgpu.service.options import ProxyOptions, ServiceOptions
from dgpu.wire.address import Address

STRICT = Quota(online_ppm=700_000, mode=QuotaMode.STRICT)

ENVIRON = {
    "DGPU__SERVER__HTTP_ADDRESS": ":8081",
    "DGPU__SERVER__GRPC_ADDRESS": "[::1]:0",
    "DGPU__SERVER__ALLOWED_HOSTS": '["gpu.example"]',
    "DGPU__AUTH__MODE": "none",
    "DGPU__SCHEDULER__SCHEDULE_INTERVAL": "0.5",
    "DGPU__SCHEDULER__SNAPSHOT_INTERVAL": "7",
    "DGPU__SCHEDULER__DEFAULT_TASK_TIMEOUT_SECONDS": "0",
    "DGPU__SCHEDULER__MAX_TASK_TIMEOUT_SECONDS": "0.0001",
    "DGPU__SCHEDULER__RETRY_DELAY_SECONDS": "2",
    "DGPU__SCHEDULER__MAX_RETRY_DELAY_SECONDS": "3",
    "DGPU__SCHEDULER__MAX_WAITING_TASKS": "4",
    "DGPU__SCHEDULER__KEEP_FINISHED_TASKS": "5",
    "DGPU__SCHEDULER__KEEP_FINISHED_SECONDS": "6",
    "DGPU__QUOTA__ONLINE_PERCENT": "0.25",
    "DGPU__QUOTA__BATCH_PERCENT": "0.75",
    "DGPU__QUOTA__MODE": "borrow",
    "DGPU__QUOTA__RECLAIM": "stop",
    "DGPU__QUOTA__UNKNOWN_TENANTS": "create",
    "DGPU__QUOTA__FAIR_SHARE_HALF_LIFE_HOURS": "2",
    "DGPU__BACKFILL__RESERVATIONS": "3",
    "DGPU__TENANTS": '[{"id": "b", "max_gpus": 4, "guaranteed_gpus": 1, "weight": 2.5, "max_running": 5, '
    '"max_waiting": 6, "max_gpu_memory_mb": 7, "max_priority": "high", "gpu_hours_per_month": 8.5}, '
    '{"id": "a", "pools": ["batch"]}]',
    "DGPU__AGENT__HEARTBEAT_TIMEOUT": "1.5",
    "DGPU__AGENT__TASK_LEASE_SECONDS": "2.5",
    "DGPU__AGENT__LEASE_ACTION": "stop",
    "DGPU__STORAGE__SNAPSHOT_DIR": "/x",
    "DGPU__STORAGE__SEGMENT_MB": "1",
    "DGPU__STORAGE__JOURNAL_RETENTION__DAYS": "1",
    "DGPU__STORAGE__JOURNAL_RETENTION__GIB": "0.5",
    "DGPU__STORAGE__LOG_RETENTION__DAYS": "2",
    "DGPU__STORAGE__LOG_RETENTION__GIB": "1",
}


def test_the_default_configuration_is_the_services_own_default() -> None:
    """Otherwise a service started by a test behaves unlike one started by a person. But for the quota and
    reservations: who writes no configuration leaves no GPU idle.
    """
    expected = ServiceOptions(
        data_dir=Path("/var/lib/dgpu-scheduler/state"),
        settings=Settings(quota=STRICT, reservations=8),
        proxy=ProxyOptions(address=Address(host="127.0.0.1", port=8081)),
    )
    assert service_options(SchedulerConfig()) == expected


def test_every_key_that_matters_reaches_the_service() -> None:
    options = service_options(load_scheduler_config(None, ENVIRON))
    assert options.http == Address(host="", port=8081)
    assert options.grpc == Address(host="::1", port=0)
    assert (options.auth_mode, options.allowed_hosts) == ("none", ("gpu.example",))
    assert (options.schedule_interval_ms, options.snapshot_interval_ms) == (500, 7_000)
    assert options.settings == Settings(
        default_timeout_ms=0,
        max_timeout_ms=1,
        retry_delay_ms=2_000,
        max_retry_delay_ms=3_000,
        max_waiting=4,
        keep_finished=5,
        keep_finished_ms=6_000,
        quota=Quota(online_ppm=250_000, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP),
        tenants=(
            Tenant(id=TenantId("a"), pools=(Pool.BATCH,)),
            Tenant(
                id=TenantId("b"),
                max_gpus=4,
                guaranteed_gpus=1,
                weight_milli=2_500,
                max_running=5,
                max_waiting=6,
                max_gpu_memory_mb=7,
                max_priority=80,
                gpu_hours_milli=8_500,
            ),
        ),
        creates_tenants=True,
        fair_share_half_life_ms=7_200_000,
        reservations=3,
    )
    rules = options.rules
    assert (rules.heartbeat_timeout_ms, rules.task_lease_ms, rules.lease_action) == (1_500, 2_500, "stop")
    assert (options.data_dir, options.segment_bytes) == (Path("/x"), 1 << 20)
    assert (options.journal_retention_ms, options.journal_retention_bytes) == (86_400_000, 1 << 29)
    assert (options.log_retention_ms, options.log_retention_bytes) == (2 * 86_400_000, 1 << 30)
