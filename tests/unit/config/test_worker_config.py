"""The settings of workers of functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.entry.scheduler import service_options


def loaded(tmp_path: Path, text: str):
    path = tmp_path / "scheduler.yaml"
    path.write_text(f"storage: {{snapshot_dir: {tmp_path}}}\n{text}\n")
    return load_scheduler_config(path, {})


def test_settings_of_workers_reach_the_service(tmp_path: Path) -> None:
    text = (
        "worker: {idle_seconds: 5, result_ttl_seconds: 60, result_mb: 2}\nscheduler: {max_models_per_gpu: 3}"
    )
    options = service_options(loaded(tmp_path, text))
    assert options.settings.worker_idle_ms == 5_000
    assert (options.results.ttl_ms, options.results.max_bytes) == (60_000, 2 << 20)
    assert options.worker_setup.max_models == 3


def test_a_worker_may_miss_one_sign_of_life(tmp_path: Path) -> None:
    text = "scheduler: {worker_heartbeat_interval_seconds: 10, worker_heartbeat_timeout_seconds: 15}"
    with pytest.raises(ConfigError, match=r"at least twice worker_heartbeat_interval_seconds \(10\), got 15"):
        loaded(tmp_path, text)
