"""The version of code on disk, and this interpreter. Equal answers in a script and in `dgpu call` make them share
workers.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# Workers of an older version of the code have another app, because their environment differs here.
VERSION_VARIABLE = "DGPU_CODE_VERSION"
MAX_FILES = 2_000
_MAX_FILE_BYTES = 4 << 20


def this_python() -> str:
    """One name for one interpreter: a script runs as `python`, a command of the same environment as `python3`."""
    if not sys.executable:  # Python is a part of another program
        return ""
    known = Path(sys.executable)
    usual = known.with_name("python3")
    try:
        return str(usual) if usual.samefile(known) else str(known)
    except OSError:
        return str(known)


def found_version(module: str, directories: Iterable[str]) -> str:
    """Of the first directory that has the module; empty: none of them has it."""
    for each in directories:
        root = Path(each)
        if _files(root, module):
            return version_of(root, module)
    return ""


def version_of(root: Path, module: str) -> str:
    """Changes when the module changes, or another one below `root` that it imports: warm workers hold old code.

    Read from the text, so nothing is run. An import by a computed name is not seen.
    """
    marks: dict[str, str] = {}
    waiting, seen = [module], {module}
    while waiting and len(marks) < MAX_FILES:
        for file, is_package in _files(root, waiting.pop()):
            inner = file.relative_to(root)
            if str(inner) in marks:
                continue
            try:
                facts = file.stat()
            except OSError:
                continue
            marks[str(inner)] = f"{inner} {facts.st_size} {facts.st_mtime_ns}"
            parts = inner.parent.parts if is_package else (*inner.parent.parts, inner.stem)
            found = {*_imports(file, parts, is_package=is_package)} - seen
            seen |= found
            waiting += sorted(found)
    return hashlib.sha256("\n".join(sorted(marks.values())).encode()).hexdigest()[:16]


def _files(root: Path, module: str) -> list[tuple[Path, bool]]:
    """The file of the module and those of the packages around it; True: it is the `__init__.py` of a package."""
    found: list[tuple[Path, bool]] = []
    place = root
    for name in module.split("."):
        place = place / name
        plain, package = place.with_name(f"{name}.py"), place / "__init__.py"
        if package.is_file():
            found.append((package, True))
        elif plain.is_file():
            return [*found, (plain, False)]
        elif not place.is_dir():
            break
    return found


def _imports(file: Path, parts: tuple[str, ...], *, is_package: bool) -> Iterator[str]:
    """Names of modules. `from a import b` gives both, because b may be a module."""
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            return
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the worker reports it
    package = parts if is_package else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and _name_of(node.func) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _name_of(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
