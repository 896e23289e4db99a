"""The queries that choose lines of a task's output."""

from __future__ import annotations

from typing import Annotated

from litestar.params import QueryParameter

from dgpu.service.rest import listing
from dgpu.service.task_output.lines import Wanted
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Unacceptable
from dgpu.wire.requests import invalid
from dgpu.wire.time_range import moment_ms
from dgpu.wire.wall_time import SHOWN

MAX_TAIL_LINES = 1_000_000
_MAX_TEXT = 1_000
_STREAMS = ("stdout", "stderr")

TailQuery = Annotated[str | None, QueryParameter(description="Only this many last lines.", required=False)]
HeadQuery = Annotated[str | None, QueryParameter(description="Only this many first lines.", required=False)]
SinceQuery = Annotated[
    str | None,
    QueryParameter(description="Only lines written since: 10m, or 2026-11-18T08:00:00Z.", required=False),
]
GrepQuery = Annotated[
    str | None, QueryParameter(description="Only lines that contain this text.", required=False)
]
TimesQuery = Annotated[
    str | None, QueryParameter(description="true: the time before each line.", required=False)
]
StreamQuery = Annotated[str | None, QueryParameter(description="Only stdout or stderr.", required=False)]


def wanted_lines(
    now_ms: int,
    *,
    since: str | None,
    grep: str | None,
    times: str | None,
    stream: str | None,
    head: str | None,
    tail: str | None,
) -> Wanted:
    """Raises BadRequest."""
    if head is not None and tail is not None:
        raise invalid([FieldError(path="head", detail="Excludes tail; give one of them.")])
    if stream is not None and stream not in _STREAMS:
        raise invalid([FieldError(path="stream", detail=f"Expected stdout or stderr, got {stream[:64]!r}.")])
    if grep is not None and not 0 < len(grep) <= _MAX_TEXT:
        expected = f"Expected 1 to {_MAX_TEXT} characters, got {len(grep):,}."
        raise invalid([FieldError(path="grep", detail=expected)])
    return Wanted(
        since_ms=None if since is None else _moment(since, now_ms),
        text=(grep or "").encode("utf-8", "surrogateescape"),
        times=listing.parse_flag("times", times),
        stream=stream or "",
        head=None if head is None else listing.parse_whole("head", head, 0, MAX_TAIL_LINES),
        tail=None if tail is None else listing.parse_whole("tail", tail, 0, MAX_TAIL_LINES),
    )


def _moment(text: str, now_ms: int) -> int:
    try:
        return SHOWN.wall_ms(moment_ms(text, now_ms))
    except Unacceptable as error:
        detail = f"Expected {error.expected}, got {text[:64]!r}."
        raise invalid([FieldError(path="since", detail=detail)]) from None
