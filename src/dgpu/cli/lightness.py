"""Parses plain arguments without typer's own parser, which imports a validation library and doubles the start-up time.

If typer differs from what is expected here, its own parser is used; that is only slower.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from typer._click.core import Command, Context, Parameter


def _path(text: str) -> Path:
    """Refuses an empty text: it is usually an unset variable, and Path would take it as the current directory."""
    if not text.strip():
        raise ValueError(text)
    return Path(text)


_WORDS = {int: "a whole number", float: "a number", Path: "a path"}
_PLAIN: dict[Any, Callable[[Any], Any]] = {str: str, int: int, float: float, Path: _path, bool: bool}


class PlainValue:
    """Replaces typer's parser of one parameter."""

    def __init__(
        self, read: Callable[[Any], Any], low: float | None, high: float | None, expected: str
    ) -> None:
        self._read = read
        self._low = low
        self._high = high
        self._expected = expected

    def coerce(self, value: Any, param: Parameter, ctx: Context) -> Any:
        if value is None:
            return () if getattr(param, "multiple", False) or param.nargs == -1 else None
        if isinstance(value, list | tuple):
            return [self._one(item, param, ctx) for item in value]
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Context) -> Any:
        try:
            read = self._read(value)
        except (ValueError, TypeError):
            raise typer.BadParameter(f"{value!r} is not {self._expected}", ctx=ctx, param=param) from None
        too_low = self._low is not None and read < self._low
        too_high = self._high is not None and read > self._high
        if too_low or too_high:
            bounds = " and ".join(
                f"{word} {bound:g}"
                for word, bound in (("at least", self._low), ("at most", self._high))
                if bound is not None
            )
            raise typer.BadParameter(f"{value!r} is out of range: {bounds}", ctx=ctx, param=param)
        return read


def lighten(command: Command) -> None:
    for param in [*command.params, *_help_option(command)]:
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is None or not hasattr(param, "_runtime_param"):
            continue
        kind = str if descriptor.annotation == list[str] else descriptor.annotation
        if kind in _PLAIN:
            rules = descriptor.parameter_info
            param._runtime_param = PlainValue(  # noqa: SLF001
                _PLAIN[kind], rules.min, rules.max, _WORDS.get(kind, "understood")
            )
    for inner in getattr(command, "commands", {}).values():
        lighten(inner)


def _help_option(command: Command) -> list[Any]:
    """Creates the parser now, not at its first use as typer does."""
    try:
        from typer._click.decorators import help_option

        help_option(["-h", "--help"])(command)
        command._help_option = command.params.pop()  # type: ignore[assignment]  # noqa: SLF001
    except (ImportError, AttributeError):
        return []
    return [command._help_option]  # noqa: SLF001
