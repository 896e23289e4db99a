"""A program that waits for functions, while its scheduler is away."""

from __future__ import annotations

import asyncio
import time

import pytest

from dgpu.client.attempts import AnsweredBy
from dgpu.client.errors import Unreachable
from dgpu.functions import patience


class Known:
    """A client, as far as patience looks at it."""

    def __init__(self, *, was_reached: bool) -> None:
        self.answered_by = AnsweredBy("http://127.0.0.1:1", "master", 0) if was_reached else None


class Away:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise Unreachable("away")
        return "an answer"

    async def later(self) -> str:
        return self()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_PAUSE_SECONDS", 0.0)


def test_a_known_scheduler_is_waited_for() -> None:
    assert patience.patiently(Known(was_reached=True), Away(5)) == "an answer"
    assert asyncio.run(patience.patiently_async(Known(was_reached=True), Away(5).later)) == "an answer"


def test_a_wrong_address_is_told_at_once() -> None:
    ask = Away(5)
    with pytest.raises(Unreachable):
        patience.patiently(Known(was_reached=False), ask)
    assert ask.left == 4


def test_the_patience_and_the_limit_of_the_caller_end(monkeypatch) -> None:
    ask = Away(5)
    with pytest.raises(Unreachable):
        patience.patiently(Known(was_reached=True), ask, until=time.monotonic())
    assert ask.left == 4
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(Unreachable):
        patience.patiently(Known(was_reached=True), ask)
    assert ask.left == 3
