"""Which form of the core runs: the one compiled by compile_core.py, if there is one that fits, else the sources as they
are.

Both decide alike. All of the compiled form is taken or nothing of it. Modules with msgspec structs have no compiled
form.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableSequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path

COMPILED = "compiled"
LIBRARY = "dgpu_core__mypyc"  # compiled modules import it by this name
RECORD = "sources"
PACKAGES = ("apply", "decide", "foresight", "index", "model", "rules")  # of the core


def put_compiled_first(path: MutableSequence[str], package: str) -> None:
    """For the `__path__` of a package of the core: Python then finds compiled modules before their sources."""
    if FORM == COMPILED:
        path.insert(0, str(_HERE.joinpath("_compiled", *package.split("."))))


def _load(folder: Path, core: Path) -> str:
    reason = _why_interpreted(folder, core)
    return COMPILED if reason is None else f"interpreted: {reason}"


def _why_interpreted(folder: Path, core: Path) -> str | None:
    if os.environ.get("DGPU_INTERPRETED") == "1":
        return "DGPU_INTERPRETED=1 is set"
    if not folder.is_dir():
        return "not compiled"
    library = folder / f"{LIBRARY}{EXTENSION_SUFFIXES[0]}"
    if not library.is_file():
        return "compiled for another Python"
    record = folder / RECORD  # an installed one has none: its sources do not change
    if record.is_file() and record.read_text(encoding="utf-8") != record_of(core):
        return "the sources have changed since they were compiled"
    try:
        _load_library(str(library))
    except ImportError as error:
        return f"the compiled form cannot be loaded ({error})"
    return None


def record_of(core: Path) -> str:
    """Size and time of each source: every start of a process compares them, and contents would take longer."""
    lines = []
    for folder in (core, *(core / name for name in PACKAGES)):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    seen = entry.stat()
                    lines.append(f"{folder.name}/{entry.name} {seen.st_size} {seen.st_mtime_ns}\n")
    return "".join(sorted(lines))


def _load_library(file: str) -> None:
    """What `import` does, for a module that is not on its path."""
    loader = ExtensionFileLoader(LIBRARY, file)
    module = loader.create_module(ModuleSpec(LIBRARY, loader, origin=file))
    module.__file__ = file  # mypyc derives the files of its modules from it
    sys.modules[LIBRARY] = module
    loader.exec_module(module)


_HERE = Path(__file__).absolute().parent
FORM = _load(_HERE / "_compiled", _HERE / "core")
