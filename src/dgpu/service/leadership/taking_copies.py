"""While it follows, a standby takes copies of output, content and history from the scheduler that leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from dgpu.service.content import copy_words
from dgpu.service.content.copying import copy_content_for_ever
from dgpu.service.content.uses import used_content
from dgpu.service.copies import words
from dgpu.service.copies.taking import Master, take_for_ever
from dgpu.service.history import past_words
from dgpu.service.history.copying import OwnHistory, fill_histories_for_ever
from dgpu.service.loop.runtime import Runtime
from dgpu.service.node_streams import NodeStreams
from dgpu.service.task_output.streams import OutputStreams

Connect = Callable[[str], Master | None]  # to a service of the master; None: no other scheduler leads


@contextlib.asynccontextmanager
async def taking_copies(
    name: str,
    connect: Connect,
    runtime: Runtime,
    streams: NodeStreams,
    output: OutputStreams,
    history: OwnHistory,
) -> AsyncIterator[None]:
    """`name`: of this scheduler."""
    work = [fill_histories_for_ever(history, lambda: connect(past_words.SERVICE))]
    if output.copies is not None:
        work.append(take_for_ever(output.copies, name, lambda: connect(words.SERVICE), runtime.now_ms))
    content = streams.files.content_copies
    if content is not None:
        content.used = lambda: runtime.read(used_content)
        work.append(copy_content_for_ever(content, name, lambda: connect(copy_words.SERVICE)))
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
