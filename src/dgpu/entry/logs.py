"""Log lines of the two services: text or JSON, to a stream or a file, without secrets.

Event names are meant for searches: task_submitted, task_scheduled, task_finished, task_failed, agent_registered,
agent_offline and so on. A value can never start a new line, because names come from users.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import logging.handlers
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from dgpu.entry.config_types import Logging
from dgpu.entry.plain_structlog import structlog

_HIDDEN = "[hidden]"
_SECRET_KEY = re.compile(r"token|authorization|password|secret|cookie|^env(ironment)?$", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,\-]+")
_MAX_DEPTH = 6
_MAX_TEXT = 2_000  # per value
_LEAST_SECRET = len("basic ") + 6  # shorter than this, _SECRET_TEXT matches nothing

# Libraries that log every request, or the same event twice.
_QUIET = ("uvicorn.access", "httpx", "httpcore", "asyncio", "watchfiles")

_EventDict = MutableMapping[str, Any]


def hush_grpc() -> None:
    """Its messages would go past the log to stderr, several for each attempt. A call that fails carries the reason."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def set_up_logging(settings: Logging) -> None:
    """Formats lines of libraries that use the standard module in the same way."""
    hush_grpc()
    shared: list[Callable[[Any, str, _EventDict], Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        redact,
    ]
    level = getattr(logging, settings.level.upper())
    render = _render_json if settings.format == "json" else _render_text
    output = _open_output(settings.output)
    output.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(output)
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    lines = _Lines(output)
    structlog.configure(
        processors=[*shared, render],
        logger_factory=lambda *_names: lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )


class _File(logging.handlers.WatchedFileHandler):
    """Follows a rotation by another program."""

    def follow(self) -> None:
        self.reopenIfNeeded()
        if self.stream is None:  # the last attempt to reopen it failed
            self.stream = self._open()
            self._statstream()


class _Lines:
    """Writes formatted lines directly. The standard module would create two records for each line and look up the
    caller, which costs more than everything else, and every started task writes two lines.
    """

    def __init__(self, output: logging.StreamHandler[Any]) -> None:
        self._output = output

    def msg(self, line: str) -> None:
        output = self._output
        output.acquire()
        try:
            if isinstance(output, _File):
                output.follow()
            if output.stream is not None:
                output.stream.write(f"{line}\n")
                output.stream.flush()
        except (OSError, ValueError):
            pass  # a closed pipe or a full disk loses only this line
        finally:
            output.release()

    debug = info = warning = error = critical = msg


def redact(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
    return {key: _redacted(key, value, 0) for key, value in event.items()}


def _redacted(key: str, value: Any, depth: int) -> Any:
    if key.startswith("_"):  # internal fields of structlog
        return value
    if _is_secret(key):
        return _HIDDEN
    if isinstance(value, str):
        if len(value) < _LEAST_SECRET:
            return value
        text = _SECRET_TEXT.sub(lambda match: f"{match[1]} {_HIDDEN}", value)
        return text if len(text) <= _MAX_TEXT or key == "exception" else text[:_MAX_TEXT] + "..."
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {str(name): _redacted(str(name), inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(key, inner, depth + 1) for inner in value]
    return value


@functools.lru_cache(maxsize=1_024)  # the same few names in every line
def _is_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None


def _render_json(_logger: Any, _method: str, event: _EventDict) -> str:
    return _encoded(event)


def _render_text(_logger: Any, _method: str, event: _EventDict) -> str:
    fields = dict(event)
    head = f"{fields.pop('time', '')} {fields.pop('level', ''):<7} {_one_line(str(fields.pop('event', '')))}"
    exception = fields.pop("exception", None)
    pairs = " ".join(f"{key}={_text_value(value)}" for key, value in fields.items())
    line = f"{head} {pairs}".rstrip()
    return line if exception is None else f"{line}\n{_writable(exception)}"


def _encoded(value: Any) -> str:
    """JSON text. File names may contain bytes that are not text; logging them must not fail."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:
        return json.dumps(value, default=str)  # which escapes them


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _text_value(value: Any) -> str:
    text = value if isinstance(value, str) else _encoded(value)
    return text if _PLAIN.fullmatch(text) or not isinstance(value, str) else _encoded(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else _encoded(text)


def _open_output(output: str) -> logging.StreamHandler[Any]:
    if output in {"stderr", "stdout"}:
        stream = sys.stderr if output == "stderr" else sys.stdout
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # also in a locale without some letters
        return logging.StreamHandler(stream)
    path = Path(output).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return _File(path, encoding="utf-8")
