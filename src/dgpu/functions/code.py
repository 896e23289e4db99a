"""The task that a function becomes: its entrypoint, and how its worker finds the code."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dgpu.client.surroundings import surrounded
from dgpu.client.upload_calls import is_digest
from dgpu.functions.options import task_fields
from dgpu.functions.versions import VERSION_VARIABLE, this_python, version_of
from dgpu.worker import registry

if TYPE_CHECKING:
    from dgpu.functions.declare import Function
    from dgpu.functions.session import Session

_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")  # as the API takes it; a dot would mean a package


class CodeNotFoundError(RuntimeError):
    """A worker could not import this function; the text says how it can."""


class Source(NamedTuple):
    """The module of a function. `root` is the directory to import it from; None: it is installed."""

    module: str
    root: Path | None = None


def described(session: Session, function: Function[Any]) -> Mapping[str, Any]:
    """The fields of its tasks, all but the arguments. Made once per function and session."""
    found = session.tasks.get(function)
    if found is None:
        found = session.tasks[function] = _describe(
            session, {**session.options, **function.options}, function
        )
    return found


def source_of(function: Any) -> Source | None:
    """None: it was defined in a notebook or at a prompt."""
    if "<" in function.__qualname__:
        where = "a lambda" if "<lambda>" in function.__qualname__ else "defined inside another function"
        raise CodeNotFoundError(
            f"{function.__qualname__} is {where}; a worker can import only functions at the top level of a module"
        )
    module = sys.modules.get(function.__module__)
    if module is None:
        raise CodeNotFoundError(f"{function.__qualname__}: its module {function.__module__!r} is not loaded")
    if module.__name__ != "__main__":
        return _of_module(module)
    spec = module.__spec__
    if spec is not None:  # python -m package.module
        return _at(spec.name, Path(str(module.__file__)))
    file = getattr(module, "__file__", None)
    return None if file is None else _script(Path(file))


def _script(file: Path) -> Source:
    if not file.is_file():
        raise CodeNotFoundError(
            f"the program came from {file.name}, and a worker needs its text; put it into a file, for example job.py"
        )
    if not _MODULE.fullmatch(file.stem):
        raise CodeNotFoundError(
            f"a worker cannot import {file.name!r}: use only letters from A to Z, digits, underscores and dashes "
            "before .py. Rename the file"
        )
    return Source(file.stem, file.resolve().parent)


def _describe(session: Session, options: Mapping[str, Any], function: Function[Any]) -> dict[str, Any]:
    source = source_of(function.local)
    if source is not None:
        return _described_at(source, session, options, function)
    from dgpu.functions.notebook import written_module

    with written_module(function) as (module, directory):
        return _described_at(Source(module, directory), session, {**options, "upload": directory}, function)


def _described_at(
    source: Source, session: Session, options: Mapping[str, Any], function: Function[Any]
) -> dict[str, Any]:
    task = {"gpu_count": 1, **task_fields(options)}
    task["entrypoint"] = f"{source.module}:{function.local.__qualname__}"
    task.setdefault("name", function.local.__name__)
    if function.model_name:
        task["model_name"] = function.model_name
    if preload := _preload(options.get("preload"), function.model_name, source.module):
        task["preload"] = preload
    task |= _code_fields(session, options, source)
    if source.root is not None and "upload" not in task:  # an upload is named by its content
        task["env"] = {**task.get("env", {}), VERSION_VARIABLE: version_of(source.root, source.module)}
    return surrounded(task)


def _code_fields(session: Session, options: Mapping[str, Any], source: Source) -> dict[str, Any]:
    is_here = session.is_same_host
    fields: dict[str, Any] = {}
    if python := options.get("python") or (this_python() if is_here else None):
        fields["python"] = python
    upload, path = options.get("upload"), options.get("python_path")
    if path is not None:
        fields["python_path"] = [path] if isinstance(path, str | os.PathLike) else list(path)
    if upload:
        top = source.root if upload is True else upload
        if top is None:
            raise CodeNotFoundError(f"upload=True: module {source.module} is installed; give a directory")
        if not is_digest(top):
            fields.setdefault("python_path", _inside(Path(top), source))
            top = session.client.upload(top, tenant=options.get("tenant"))
        fields["upload"] = top
    elif path is None and source.root is not None:
        if not is_here:
            raise CodeNotFoundError(
                f"module {source.module} is in {source.root} on this machine, and the scheduler is on another one. "
                "Give upload=True (sends that directory), upload=DIRECTORY, or python_path=[DIRECTORY] if the nodes "
                "see the same files"
            )
        fields["python_path"] = [str(source.root)]
    if "python_path" in fields:
        fields["python_path"] = [str(each) for each in fields["python_path"]]
    return fields


def _inside(top: Path, source: Source) -> list[str]:
    """Where the module's directory is within an upload."""
    if source.root is None:
        return []
    try:
        inner = source.root.resolve().relative_to(top.resolve())
    except ValueError:
        raise CodeNotFoundError(
            f"upload: module {source.module} is in {source.root}, which is not inside {top}"
        ) from None
    return [] if inner == Path() else [str(inner)]


def _preload(chosen: Any, model_name: str, module: str) -> list[str]:
    if not chosen:
        return []
    if chosen is not True:
        return [chosen] if isinstance(chosen, str) else list(chosen)
    declared = registry.declared(model_name)
    if declared is None:
        raise CodeNotFoundError(f"preload=True: the function has no declared model (model={model_name!r})")
    loader: Any = declared.__wrapped__
    home = module if loader.__module__ == "__main__" else loader.__module__
    return [f"{home}:{loader.__qualname__}"]


def _of_module(module: types.ModuleType) -> Source:
    file = getattr(module, "__file__", None)
    if not file:
        return Source(module.__name__)  # built in, or a namespace
    return _at(module.__name__, Path(file))


def _at(name: str, file: Path) -> Source:
    file = file.resolve()
    if _is_installed(file):
        return Source(name)
    steps = name.count(".") + (1 if file.name == "__init__.py" else 0)
    return Source(name, file.parents[steps])


def _is_installed(file: Path) -> bool:
    places = {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")}
    return "site-packages" in file.parts or any(
        str(file).startswith(f"{each}{os.sep}") for each in places if each
    )
