"""How long the follower has been behind: a burst is no lag, and neither is a pause. What counts as trouble."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from dgpu.service.follower.link import MAX_FAILURES, Answer, FollowerLink


def test_the_lag_is_the_time_since_a_group_that_was_not_reached(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("dgpu.service.follower.link.time.monotonic", lambda: now_s)

    async def story() -> None:
        nonlocal now_s
        link = FollowerLink(tmp_path)
        link.notify(1)
        link._hear(Answer(seen=1, at=5))
        now_s += 3_600  # nothing happens for an hour
        link.notify(2)
        assert link.lag_s == 0.0
        now_s += 0.5
        link.notify(3)
        assert link.lag_s == 0.5
        link._hear(Answer(seen=2, at=6))
        now_s += 0.2
        assert link.lag_s == pytest.approx(0.2)
        link._hear(Answer(seen=3, at=7))
        assert link.lag_s == 0.0

    asyncio.run(story())


@pytest.mark.parametrize(("free_bytes", "is_trouble"), [(0, False), (1 << 30, True)])
async def test_a_full_disk_is_not_trouble_of_the_follower(
    tmp_path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, is_trouble: bool
) -> None:
    """The journal refuses tasks with 507 then. Another answer would hide the cause."""
    usage = shutil.disk_usage(tmp_path)._replace(free=free_bytes)
    monkeypatch.setattr("dgpu.service.follower.link.shutil.disk_usage", lambda _: usage)
    link = FollowerLink(tmp_path)
    link.last_error = "disk I/O error"
    for _ in range(MAX_FAILURES):
        assert not link.trouble
        link._note_death(1)
    assert bool(link.trouble) == is_trouble
