"""The first steps of a scheduler that leads, when it is to stop and nothing can be stored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from dgpu.service.leadership.serving import _before_the_end
from dgpu.service.loop.failures import NotMaster


async def stored(told: list[str], answer: asyncio.Future[None]) -> None:
    try:
        await answer
    finally:
        told.append("ended")


async def test_a_stop_waits_for_nothing_that_cannot_be_stored() -> None:
    loop = asyncio.get_running_loop()
    candidacy = cast("Any", SimpleNamespace(over=loop.create_future()))
    stopping, told = loop.create_future(), cast("list[str]", [])
    loop.call_later(0.01, stopping.set_result, None)
    assert not await _before_the_end(stored(told, loop.create_future()), candidacy, stopping)
    await asyncio.sleep(0)
    assert told == ["ended"]


async def test_what_was_stored_counts_and_a_lost_lead_is_no_error() -> None:
    loop = asyncio.get_running_loop()
    candidacy = cast("Any", SimpleNamespace(over=loop.create_future()))
    for outcome in (None, NotMaster()):
        answer = loop.create_future()
        answer.set_result(None) if outcome is None else answer.set_exception(outcome)
        assert await _before_the_end(stored([], answer), candidacy, loop.create_future())
