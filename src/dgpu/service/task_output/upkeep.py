"""Restores deleted files of stored output, even while no output arrives, and counts time for copies."""

from __future__ import annotations

import asyncio

import structlog

from dgpu.service.task_output.streams import OutputStreams

_LOOK_S = 2.0

_log = structlog.get_logger("dgpu.service")


async def look_after_files(output: OutputStreams) -> None:
    trouble = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        if output.copies is not None:
            output.copies.on_time()
        try:
            await output.mend_store()
        except Exception as error:  # noqa: BLE001 - the folder cannot be created now: the scheduler continues without it
            if str(error) != trouble:
                _log.error("output_files_gone", error=str(error))
            trouble = str(error)
        else:
            trouble = ""
