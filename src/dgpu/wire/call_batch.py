"""Many calls of one function: a template, and the arguments of each call."""

from __future__ import annotations

from collections.abc import Generator

import msgspec
from msgspec.structs import replace

from dgpu.core.model.task import TaskSpec
from dgpu.wire import call_fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Unacceptable
from dgpu.wire.json_body import BadRequest

_encode = msgspec.json.Encoder().encode


def batch_of_calls(
    template: TaskSpec, calls: object, most: int, step: int
) -> Generator[None, None, tuple[tuple[int, TaskSpec], ...]]:
    """`calls`: base64 of the msgpack of [args, kwargs], for each call. The template has no arguments."""
    detail = msgspec.json.decode(template.detail)
    if not template.shape.app or "args" in detail or "args_ref" in detail:
        raise _refused("task", "Expected a function call (entrypoint) without arguments.")
    if type(calls) is not list or not 0 < len(calls) <= most:
        raise _refused("calls", f"Expected a list of 1 to {most:,} texts.")
    entries: list[tuple[int, TaskSpec]] = []
    for start in range(0, len(calls), step):
        for number, given in enumerate(calls[start : start + step], start):
            try:
                detail["args"] = call_fields.args_msgpack(given)
            except Unacceptable as bad:
                raise _refused(f"calls[{number}]", f"Expected {bad.expected}.") from None
            entries.append((1, replace(template, detail=_encode(detail))))
        yield
    return tuple(entries)


def _refused(path: str, detail: str) -> BadRequest:
    return BadRequest("invalid_field", f"{path}: {detail}", errors=[FieldError(path=path, detail=detail)])
