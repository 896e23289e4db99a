from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.entry.config_types import SchedulerConfig


def load(tmp_path: Path, text: str, environ: dict[str, str]) -> SchedulerConfig:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    return load_scheduler_config(path, environ)


@pytest.mark.parametrize(
    ("yaml_text", "environ", "shares"),
    [
        ("", {}, (0.7, 0.3)),
        ("quota: {online_percent: 0.65}", {}, (0.65, 0.35)),
        ("quota: {batch_percent: 1}", {}, (0, 1)),
        ("", {"DGPU__QUOTA__ONLINE_PERCENT": "0.65"}, (0.65, 0.35)),
        (
            "quota: {online_percent: 0.7, batch_percent: 0.3}",
            {"DGPU__QUOTA__ONLINE_PERCENT": "0.5"},
            (0.5, 0.5),
        ),
        ("quota: {online_percent: 0.9}", {"DGPU__QUOTA__BATCH_PERCENT": "0.4"}, (0.6, 0.4)),
    ],
)
def test_one_share_of_the_quota_is_enough(
    tmp_path: Path, yaml_text: str, environ: dict[str, str], shares: tuple[float, float]
) -> None:
    """One variable must be able to override one key of a complete file."""
    quota = load(tmp_path, yaml_text, environ).quota
    assert (quota.online_percent, quota.batch_percent) == shares


def test_two_shares_of_the_environment_must_add_up(tmp_path: Path) -> None:
    environ = {"DGPU__QUOTA__ONLINE_PERCENT": "0.6", "DGPU__QUOTA__BATCH_PERCENT": "0.3"}
    with pytest.raises(ConfigError, match=r"quota\.batch_percent: is 0\.3; with"):
        load(tmp_path, "", environ)
