"""A group waits for a moment, once, while the next command of a calm tenant may be on its way."""

from __future__ import annotations

import asyncio

from dgpu.service.loop.anticipation import Anticipation


def test_a_group_waits_once_and_then_goes_ahead() -> None:
    async def run() -> tuple[bool, bool, bool]:
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wait = Anticipation(
            asyncio.get_running_loop(), lambda: decided.set_result(wait.holds(is_wanted=True))
        )
        first = wait.holds(is_wanted=True)
        when_over = await asyncio.wait_for(decided, 5)
        return first, when_over, wait.holds(is_wanted=True)

    assert asyncio.run(run()) == (True, False, True)


def test_a_wait_that_is_no_longer_wanted_ends_at_once() -> None:
    async def run() -> list[str]:
        decided: list[str] = []
        wait = Anticipation(asyncio.get_running_loop(), lambda: decided.append("late"))
        assert wait.holds(is_wanted=True)
        assert not wait.holds(is_wanted=False)
        await asyncio.sleep(0.02)
        return decided

    assert asyncio.run(run()) == []
