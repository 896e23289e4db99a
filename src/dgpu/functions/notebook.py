"""Functions of a notebook or a prompt: their text is written to a module, which is uploaded.

The module holds the function, its model's loader, and all that they refer to: imports, other functions and classes of
the notebook, and simple values. Anything else cannot be sent this way, and the error names it.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import symtable
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dgpu.functions.code import CodeNotFoundError
from dgpu.worker import registry
from dgpu.worker.registry import DeclaredModel

if TYPE_CHECKING:
    from dgpu.functions.declare import Function

MAX_MODULE_BYTES: Final = 256 << 10
_MAX_DEFINITIONS: Final = 500


@contextlib.contextmanager
def written_module(function: Function[Any]) -> Iterator[tuple[str, Path]]:
    """The name of the module, and a directory that holds nothing else. Equal text gets the same name and upload. The
    directory exists within the block.
    """
    text = module_text(function)
    name = f"dgpu_notebook_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with tempfile.TemporaryDirectory(prefix="dgpu-notebook-") as directory:
        (Path(directory) / f"{name}.py").write_text(text, encoding="utf-8")
        yield name, Path(directory)


def module_text(function: Function[Any]) -> str:
    collected = _Collected()
    collected.add(function.local.__name__, function)
    if function.model_name and (declared := registry.declared(function.model_name)):
        collected.add(declared.__name__, declared)
    text = "\n\n".join(
        ["from __future__ import annotations", *collected.imports, *collected.values, *collected.definitions]
    )
    if len(text.encode()) > MAX_MODULE_BYTES:
        raise CodeNotFoundError(
            f"the code of {function.local.__name__} has {len(text.encode()):,} bytes, at most {MAX_MODULE_BYTES:,} are "
            "sent from a notebook; move it into a module and give upload="
        )
    return text + "\n"


class _Collected:
    def __init__(self) -> None:
        self.imports: list[str] = []
        self.values: list[str] = []
        self.definitions: list[str] = []
        self._seen: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        """Dependencies come first: decorators and default values are evaluated when the module is imported."""
        if name in self._seen:
            return
        if len(self._seen) >= _MAX_DEFINITIONS:
            raise CodeNotFoundError(
                f"the function refers to more than {_MAX_DEFINITIONS} names of the notebook; "
                "move some of them into a module"
            )
        self._seen.add(name)
        plain = _unwrapped(value)
        if isinstance(value, types.ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif home := _home_of(value):
            self.imports.append(f"from {home[0]} import {home[1]} as {name}")
        elif isinstance(plain, types.FunctionType | type) and plain.__module__ == "__main__":
            self._add_definition(name, plain)
        else:
            self._add_value(name, value)

    def _add_definition(self, name: str, plain: Any) -> None:
        try:
            text = textwrap.dedent(inspect.getsource(plain))
        except (OSError, TypeError) as error:
            raise CodeNotFoundError(
                f"the text of {name} is not known ({error}); write it to a module and import it"
            ) from None
        known = vars(_main())
        for used in sorted(_names(text) - {name}):
            if used in known:
                self.add(used, known[used])
        self.definitions.append(text.rstrip())

    def _add_value(self, name: str, value: Any) -> None:
        try:
            is_same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            is_same = False
        if not is_same:
            raise CodeNotFoundError(
                f"the function uses {name!r} of the notebook, a {type(value).__name__}, which cannot be sent with its "
                "code; pass it as an argument, or make it inside the function"
            )
        self.values.append(f"{name} = {value!r}")


def _unwrapped(value: Any) -> Any:
    from dgpu.functions.declare import Function

    if isinstance(value, Function):
        return value.local
    return value.__wrapped__ if isinstance(value, DeclaredModel) else value


def _home_of(value: Any) -> tuple[str, str] | None:
    """The module that has this object, and its name there: of functions, classes, functions in C and types of `typing`.
    None: the notebook made it.
    """
    owners = (getattr(value, "__module__", None), type(getattr(value, "__self__", None)).__module__)
    for module in owners:
        attribute = getattr(value, "__name__", None)
        if module == "__main__" or not isinstance(module, str) or not isinstance(attribute, str):
            continue
        if getattr(sys.modules.get(module), attribute, None) is value:
            return module, attribute
    return None


def _main() -> types.ModuleType:
    import __main__

    return __main__


def _names(text: str) -> set[str]:
    """Names that the text takes from its module. Its local variables may have names of the notebook, too."""
    module = symtable.symtable(text, "<notebook>", "exec")
    found = {each.get_name() for each in module.get_symbols() if each.is_referenced()}
    inner = list(module.get_children())
    while inner:
        table = inner.pop()
        inner += table.get_children()
        found |= {each.get_name() for each in table.get_symbols() if each.is_global()}
    return found
