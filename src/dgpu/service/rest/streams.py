"""Streamed answers: output of tasks, and live events."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import QueryParameter
from litestar.response import Stream

from dgpu.core.model.gang import MAX_NODES
from dgpu.core.model.ids import TaskId
from dgpu.service.access.audiences import TooManyAudiences
from dgpu.service.copies.copies import Doubt
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError, too_many_audiences
from dgpu.service.rest.line_queries import (
    GrepQuery,
    HeadQuery,
    SinceQuery,
    StreamQuery,
    TailQuery,
    TimesQuery,
    wanted_lines,
)
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.tasks import Given, Opener, TaskIdText, Who
from dgpu.service.task_output.lines import MAX_TAIL_BYTES, NoMarks, Wanted, chosen_lines, last_lines
from dgpu.service.task_output.reading import OutputState, OutputUnavailable
from dgpu.wire.answers import Problem, TaskAnswer, instant_or_none
from dgpu.wire.json_body import BadRequest
from dgpu.wire.output_answers import ByteRange, OutputAnswer
from dgpu.wire.ranks import run_number
from dgpu.wire.wall_time import SHOWN

TAIL_LINE_BYTES = 1_024  # a guess of the length of a line, to request enough from the agent

FollowQuery = Annotated[
    str | None, QueryParameter(description="true: stay until the task has ended.", required=False)
]
RankQuery = Annotated[
    str | None, QueryParameter(description="Rank of a multi-node task; 0 if absent.", required=False)
]
AttemptQuery = Annotated[
    str | None, QueryParameter(description="1 is the first; the latest if absent.", required=False)
]


@get(
    "/api/v1/tasks/{task_id:str}/logs",
    summary="Output of a task",
    description="stdout and stderr as text. With follow it is streamed until the task has ended; a waiting "
    "task may be followed too. Empty means that nothing was written. If that is unknown, or if output is missing, the "
    "answer says so: 404 output_unavailable if nothing is left, else a line `[dgpu: N bytes left out here; ...]` "
    "in the text. The scheduler stores the first and the last bytes of an attempt; the rest comes from its node, while "
    "it is connected and has it. For an ended attempt, headers precede the text: X-Dgpu-Output-Bytes (the total "
    "written) and, if some of it is not available now, X-Dgpu-Output-Missing (ranges like 1048576-23068672, "
    "the second number excluded). since, times and stream need marks, which agents of earlier versions did not write: "
    "409 `no_times`. grep looks for plain text.",
    media_type="text/plain",
)
async def task_logs(
    rest: Given,
    who: Who,
    opener: Opener,
    task_id: TaskIdText,
    follow: FollowQuery = None,
    tail: TailQuery = None,
    attempt: AttemptQuery = None,
    rank: RankQuery = None,
    since: SinceQuery = None,
    grep: GrepQuery = None,
    times: TimesQuery = None,
    stream: StreamQuery = None,
    head: HeadQuery = None,
) -> Stream:
    number = listing.task_id_of(task_id)
    follows = listing.parse_flag("follow", follow)
    now_ms = rest.runtime.now_ms()
    wanted = wanted_lines(now_ms, since=since, grep=grep, times=times, stream=stream, head=head, tail=tail)
    which = 0 if attempt is None else listing.parse_whole("attempt", attempt, 1, 1_000_000)
    which_rank = 0 if rank is None else listing.parse_whole("rank", rank, 0, MAX_NODES - 1)
    task = await listing.find_task(rest, who, number)  # unknown: 404 before the stream starts
    if which_rank >= task.nodes:
        raise ProblemError(_no_rank(task))
    pieces = _pieces(rest, opener(), number, which, wanted, follows=follows, rank=which_rank)
    try:
        first = await anext(pieces, None)
    except OutputUnavailable as error:
        await pieces.aclose()
        raise _unavailable(Doubt(str(error), passes=rest.output.is_settling)) from None
    except NoMarks:
        await pieces.aclose()
        raise ProblemError(_no_times(task)) from None
    except BaseException:
        await pieces.aclose()
        raise
    is_empty = (first is None or (wanted.is_plain and not first)) and 0 not in {wanted.tail, wanted.head}
    if is_empty and not follows and (doubt := await _doubt(rest, task, which, which_rank)):
        await pieces.aclose()
        raise _unavailable(doubt)
    headers = {"x-accel-buffering": "no"}
    if not follows and task.attempt:
        headers |= _headers(await rest.output.describe(number, which or task.attempt, which_rank))
    return Stream(_rest_of(first, pieces), media_type="text/plain; charset=utf-8", headers=headers)


@get(
    "/api/v1/tasks/{task_id:str}/output",
    summary="Location of a task's output",
    description="The size of an attempt's output, the ranges of bytes that the scheduler stores, the missing ranges, "
    "and their location. `bytes` is null until the attempt has ended and its output has arrived.",
)
async def task_output(
    rest: Given, who: Who, task_id: TaskIdText, attempt: AttemptQuery = None, rank: RankQuery = None
) -> OutputAnswer:
    number = listing.task_id_of(task_id)
    which = 0 if attempt is None else listing.parse_whole("attempt", attempt, 1, 1_000_000)
    which_rank = 0 if rank is None else listing.parse_whole("rank", rank, 0, MAX_NODES - 1)
    task = await listing.find_task(rest, who, number)
    if which_rank >= task.nodes:
        raise ProblemError(_no_rank(task))
    chosen = which or task.attempt
    state = await rest.output.describe(number, chosen, which_rank) if chosen else OutputState()
    stored = state.stored
    return OutputAnswer(
        task_id=task.task_id,
        attempt=chosen,
        rank=which_rank,
        bytes=None if stored is None else stored.end,
        stored=tuple(ByteRange(begin=begin, end=end) for begin, end in (stored.ranges if stored else ())),
        missing=tuple(ByteRange(begin=begin, end=end) for begin, end in state.missing),
        node=state.node_id,
        node_connected=state.is_connected,
        kept_until=instant_or_none(stored.kept_until_ms) if stored is not None else None,
    )


def _headers(state: OutputState) -> dict[str, str]:
    if state.stored is None:
        return {}
    headers = {"x-dgpu-output-bytes": str(state.stored.end)}
    if state.missing and not (state.is_connected and state.stored.kept_until_ms):
        headers["x-dgpu-output-missing"] = ", ".join(f"{begin}-{end}" for begin, end in state.missing)
    return headers


async def _doubt(rest: Backend, task: TaskAnswer, attempt: int, rank: int) -> Doubt | None:
    """Nothing was found; why there may still have been output."""
    is_latest = attempt in {0, task.attempt}
    if task.allocation or not task.attempt or (is_latest and task.status == "running"):
        return None
    ended_at = task.finished_at if is_latest and task.finished_at else task.created_at
    ended_ms = SHOWN.at_ms(round(dt.datetime.fromisoformat(ended_at).timestamp() * 1000))
    nodes = task.allocated_nodes or ([task.node] if task.node else [])
    node = nodes[rank] if rank < len(nodes) else None
    number = listing.task_id_of(task.task_id)
    return await rest.output.doubt(number, run_number(attempt or task.attempt, rank), node, ended_ms)


def _unavailable(doubt: Doubt) -> ProblemError:
    if doubt.passes:
        detail = f"The output is not available yet: {doubt.why}. Try again soon."
        problem = Problem(
            status=503,
            title="No output yet",
            code="output_not_here_yet",
            detail=detail,
            facts={"why": doubt.why},
        )
        return ProblemError(problem, {"retry-after": "1"})
    detail = f"The output is not available: {doubt.why}."
    return ProblemError(
        Problem(
            status=404, title="No output", code="output_unavailable", detail=detail, facts={"why": doubt.why}
        )
    )


def _no_rank(task: TaskAnswer) -> Problem:
    ranks = "only rank 0" if task.nodes == 1 else f"the ranks 0 to {task.nodes - 1}"
    return Problem(
        status=404,
        title="No such rank",
        code="unknown_rank",
        detail=f"{task.task_id} has {ranks}.",
        facts={"task_id": task.task_id, "last_rank": task.nodes - 1},
    )


def _no_times(task: TaskAnswer) -> Problem:
    detail = (
        f"The output of {task.task_id} has no times and no marks of its streams: it was written by an agent of an "
        "earlier version. Leave out since, times and stream."
    )
    return Problem(
        status=409, title="No times", code="no_times", detail=detail, facts={"task_id": task.task_id}
    )


async def _rest_of(first: bytes | None, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        if first:
            yield first
        async for piece in pieces:
            if piece:
                yield piece
    except OutputUnavailable as error:
        yield f"\n[dgpu: the rest of the output is not available: {error}]\n".encode()
    except NoMarks:  # of a later attempt
        yield b"\n[dgpu: the rest of the output has no times]\n"
    finally:
        await pieces.aclose()


async def _pieces(
    rest: Backend,
    opened: OpenStream,
    task_id: TaskId,
    attempt: int,
    wanted: Wanted,
    *,
    follows: bool,
    rank: int = 0,
) -> AsyncGenerator[bytes, None]:
    """The first piece comes as soon as it is known that there is one; it may be empty."""
    try:
        if 0 in {wanted.tail, wanted.head} and not follows:
            return
        # Chosen lines are counted after the choice, so all of the output is read; a follower gets the last lines first.
        is_cut = wanted.tail is not None and (follows or wanted.is_plain)
        tail_bytes = min(MAX_TAIL_BYTES, max(1, wanted.tail or 0) * TAIL_LINE_BYTES) if is_cut else 0
        pieces = rest.output.read(task_id, attempt, tail_bytes, follow=follows, rank=rank)
        if follows and wanted.tail is None:
            yield b""  # the answer begins at once, although the task may wait for hours
        if is_cut and wanted.tail is not None:
            pieces = last_lines(pieces, wanted.tail, follows=follows)
            wanted = msgspec.structs.replace(wanted, tail=None)
        async for piece in (
            pieces if wanted.is_plain and wanted.tail is None else chosen_lines(pieces, wanted)
        ):
            yield piece
    finally:
        opened.close()


@get(
    "/api/v1/events",
    summary="Live events",
    description="Server-sent events, all in one stream. `id` is the journal index; Last-Event-ID continues after it. "
    "`lagged` means that some events were left out: read your data again. A principal of some tenants gets the events "
    "of its own tasks, and those of nodes and GPUs without names of other tenants.",
    media_type="text/event-stream",
)
async def stream_events(rest: Given, who: Who, opener: Opener, request: Request[Any, Any, Any]) -> Stream:
    given = request.headers.get("last-event-id")
    after = None
    if given:
        if not (given.isascii() and given.isdigit() and len(given) < 18):
            raise BadRequest("invalid_header", "Last-Event-ID must be the number of an event of this stream.")
        after = int(given)
    opened = opener()
    try:
        events = rest.feed.stream(who.audience, after, rest.options.heartbeat_seconds)
    except TooManyAudiences:
        opened.close()
        raise too_many_audiences() from None
    return Stream(
        _events(events, opened),
        media_type="text/event-stream; charset=utf-8",
        headers={"x-accel-buffering": "no"},
    )


async def _events(events: AsyncGenerator[bytes, None], opened: OpenStream) -> AsyncIterator[bytes]:
    try:
        async for piece in events:
            yield piece
    finally:
        await events.aclose()
        opened.close()


ROUTES: tuple[Any, ...] = (task_logs, task_output, stream_events)
