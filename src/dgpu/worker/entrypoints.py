"""From "package.module:function" to the function."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from dgpu.worker.context import current

_MAX_NAMES = 20


class NotFound(Exception):  # noqa: N818 - it is told to the user in these words
    """No such module or function; the text names the places searched."""


def find(entrypoint: str) -> Any:
    """The object that an entrypoint names. Modules are imported once."""
    module_name, colon, path = entrypoint.partition(":")
    if not (module_name and colon and path):
        raise NotFound(f"entrypoint is {entrypoint!r}, expected package.module:function")
    module = import_module(module_name)
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise NotFound(
            f"entrypoint {entrypoint!r}: {_file_of(module)} has no {path!r}; it has {_callables(module)}"
        ) from error


def import_module(name: str) -> ModuleType:
    """Import errors inside the module stay as they are; a missing module names the directories searched."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    # A file that was written after an earlier, failed look must be found.
    importlib.invalidate_caches()
    current.is_importing = True
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or (name != error.name and not name.startswith(f"{error.name}.")):
            raise
        searched = ", ".join(_places())
        raise NotFound(
            f"no module {error.name!r} for {sys.executable}; searched: {searched}. "
            "Give python, python_path or upload, or install the package there."
        ) from error
    finally:
        current.is_importing = False


def _places() -> Iterator[str]:
    """Directories of modules, but for those of Python itself."""
    own = f"{os.path.dirname(os.__file__)}"  # noqa: PTH120 - as sys.path has it
    for entry in dict.fromkeys(entry or "." for entry in sys.path):
        if entry not in {own, f"{own}/lib-dynload"} and not entry.endswith(".zip"):
            yield entry


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or f"module {module.__name__}"


def _callables(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    if not names:
        return "no functions"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(sorted(names)[:_MAX_NAMES]) + more
