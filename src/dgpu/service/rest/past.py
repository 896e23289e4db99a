"""Requests about the past: time ranges, and answers that many browsers share.

A read takes milliseconds to seconds and runs in a thread, a few at a time. Equal requests within a moment share one
answer: a hundred open charts cost as much as one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.listing import query_value
from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.reader import Span, Telemetry, TelemetryAway
from dgpu.service.telemetry.spans import span_of
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.json_body import BadRequest, shorten
from dgpu.wire.time_range import moment_ms, step_ms

T = TypeVar("T")
LONGEST_MS = 400 * 86_400_000
MAX_IDS = 64
_MAX_ID = 128
_AT_ONCE = 2
_MAX_WAITING = 64
_FRESH_S = 5.0
_MAX_KEPT = 128


class Range(NamedTuple):
    since: int
    until: int
    now: int


class Past:
    """One per service. Has its own connections: a long report must not delay the list of tasks."""

    def __init__(self, rest: Backend) -> None:
        self.history = rest.history.another()
        self.telemetry = Telemetry(rest.history.path.with_name(TELEMETRY_NAME))
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0
        self._answers: dict[Any, tuple[float, asyncio.Task[Any]]] = {}

    async def ask(self, key: Any, work: Callable[[], T]) -> T:
        """`work` runs in a thread, unless an equal request was answered a moment ago or is being answered now."""
        now = time.monotonic()
        for old in [each for each, (until, _) in self._answers.items() if until < now]:
            del self._answers[old]
        known = self._answers.get(key)
        if known is None:
            if self._waiting >= _MAX_WAITING:
                raise _unavailable("history_busy", "Too many reports are being computed. Try again soon.")
            while len(self._answers) >= _MAX_KEPT:
                del self._answers[next(iter(self._answers))]
            known = (now + _FRESH_S, asyncio.create_task(self._work(work)))
            self._answers[key] = known
        task = known[1]
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done():
                self._answers.pop(key, None)  # the next attempt may succeed
            raise

    async def _work(self, work: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        except TelemetryAway as error:
            raise _unavailable(
                "telemetry_unreadable", f"The telemetry cannot be read now: {error}."
            ) from None
        except sqlite3.OperationalError as error:
            raise _unavailable("history_unreadable", f"The history cannot be read now: {error}.") from None
        finally:
            self._waiting -= 1


def past_of(rest: Backend) -> Past:
    """Created at the first request."""
    if rest.past is None:
        rest.past = Past(rest)
    return rest.past


def parse_range(rest: Backend, since: str | None, until: str | None, *, default: str) -> Range:
    now = rest.runtime.now_ms()
    begin = query_value("since", since if since is not None else default, lambda text: moment_ms(text, now))
    end = query_value("until", until if until is not None else "now", lambda text: moment_ms(text, now))
    end = min(end, max(now, begin))  # the future is unknown
    if begin >= now:
        raise _refused("since", since, "a time in the past")
    if end <= begin:
        raise _refused("until", until, "a time after since")
    if end - begin > LONGEST_MS:
        raise _refused("since", since, f"a range of at most {LONGEST_MS // 86_400_000} days")
    return Range(begin, end, now)


def parse_span(rest: Backend, since: str | None, until: str | None, step: str | None) -> tuple[Range, Span]:
    times = parse_range(rest, since, until, default="1h")
    wanted = None if step is None else query_value("step", step, step_ms)
    try:
        return times, span_of(times.since, times.until, now=times.now, step_ms=wanted)
    except ValueError as error:
        raise _refused("step", step, str(error)) from None


def parse_names(name: str, text: str | None) -> tuple[str, ...]:
    """Separated by commas; duplicates are dropped."""
    names = tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    if len(names) > MAX_IDS or any(len(each) > _MAX_ID for each in names):
        raise _refused(name, text, f"at most {MAX_IDS} names of at most {_MAX_ID} characters")
    return names


def _refused(name: str, value: str | None, expected: str) -> BadRequest:
    got = "" if value is None else f", got {shorten(value)}"
    detail = f"Expected {expected}{got}."
    return BadRequest("invalid_query", f"{name}: {detail}", errors=[FieldError(path=name, detail=detail)])


def _unavailable(code: str, detail: str) -> ProblemError:
    return ProblemError(Problem(status=503, title="Not available now", code=code, detail=detail))
