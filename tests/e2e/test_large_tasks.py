"""A large task behind a stream of small ones, with real processes."""

from __future__ import annotations

import pytest

from .conftest import eventually

pytestmark = pytest.mark.slow


def until(path):
    return ("sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done")


def test_small_tasks_do_not_take_the_quota_that_a_large_one_waits_for(site):
    """Batch may have 4 of the 8 GPUs. Each small task that ends leaves one GPU of quota, and the next small one would
    take it for an hour.
    """
    site.up("--fake", "8xV100")
    site.good("quota", "set", "--online", "0.5", "--mode", "strict")
    doors = [site.home / f"door-{number}" for number in range(4)]
    first = [site.submit("--", *until(door)) for door in doors]
    for task_id in first:
        site.started(task_id)
    large = site.submit("-G", "4", "--", "true")
    later = [site.submit("--", "true") for _ in range(3)]
    for door, task_id in zip(doors[:3], first[:3], strict=True):
        door.touch()
        site.good("wait", task_id)
        assert "quota" in site.good("why", large).out
    eventually(lambda: "reserved" in site.good("why", later[0]).out, "the quota to be reserved")
    assert [site.task(task_id)["started_at"] for task_id in (large, *later)] == [None] * 4
    doors[3].touch()
    site.good("wait", large, *later)
    starts = [site.task(task_id)["started_at"] for task_id in (large, *later)]
    assert starts[0] == min(starts), "the large one is the first"
