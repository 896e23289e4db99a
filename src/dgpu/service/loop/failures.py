# ruff: noqa: N818 - the names state the failures
"""Failures of commands and reads that are no refusals of the core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from dgpu.service.loop.journal_thread import end_process

_log = structlog.get_logger("dgpu.scheduler")


class CommandFailed(RuntimeError):
    """The decision of a command hit a bug. The command had no effect."""


class NotMaster(RuntimeError):
    """Another scheduler leads, or none. The command had no effect."""


class OutcomeUnknown(RuntimeError):
    """The leadership was lost while the command was being committed. It may have been carried out."""


@contextlib.contextmanager
def or_end() -> Iterator[None]:
    """After a bug in this block, memory and journal may differ; only reading the journal again makes them equal."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        _log.exception("scheduler_failed")
        end_process(f"a bug in the scheduler: {error}")
