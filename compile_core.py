"""Compiles the core (src/dgpu/core) with mypyc: decisions take half the time. `make core` and the build hook run it.

Also compiles launch_as.c and spawn_into.c, which start tasks as other Unix users: without them, such a start takes
three times as long. They need only a C compiler. The core also needs Python.h and the packages of REQUIREMENTS.
Without them the core is interpreted, which is no error. What is made here is found by dgpu.core_form.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import io
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent
# What an isolated build fetches: the versions of requirements/dev.lock.
REQUIREMENTS = ["msgspec==0.22.0", "mypy==2.4.1", "setuptools==84.2.1"]
# Without a C library, and so without everything that a compiler expects from one.
_FREESTANDING = [
    *("-O2", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns")
]
_NATIVE = {"launch_as.c": ["-static", "-fno-pie", "-no-pie"], "spawn_into.c": ["-shared", "-fPIC"]}


def why_not() -> str | None:
    """What is missing on this machine, if anything."""
    if c_compiler() is None:
        return "there is no C compiler"
    headers = sysconfig.get_path("include")
    if not pathlib.Path(headers, "Python.h").is_file():
        return f"there is no Python.h in {headers}"
    absent = [name for name in ("msgspec", "mypyc", "setuptools") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def c_compiler() -> str | None:
    """The one of $CC, else the one that made this Python, else cc."""
    given = os.environ.get("CC")
    wanted = [given] if given else [sysconfig.get_config_var("CC"), "cc"]
    return next((command for command in wanted if command and shutil.which(shlex.split(command)[0])), None)


def compiled_modules(package: pathlib.Path) -> list[pathlib.Path]:
    """All but those that define msgspec structs: msgspec reads annotations, and compiled classes keep none."""
    classes = {path: _classes(path) for path in sorted(package.rglob("*.py"))}
    structs, more = {"Struct"}, True
    while more:
        derived = {name for found in classes.values() for name, bases in found.items() if bases & structs}
        more = not derived <= structs
        structs |= derived
    return [
        path for path, found in classes.items() if path.name != "__init__.py" and not structs & set(found)
    ]


def _classes(path: pathlib.Path) -> dict[str, set[str]]:
    """The classes of a module, each with the last names of its bases."""
    return {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def compile_core(root: pathlib.Path, into: pathlib.Path) -> None:
    """Replaces `into` when all is done: a build that fails or is killed leaves the former one, or none."""
    fresh, old = into.with_name(f"{into.name}.new"), into.with_name(f"{into.name}.old")
    form = _core_form(root)
    try:
        shutil.rmtree(fresh, ignore_errors=True)  # of one that was killed
        fresh.mkdir(parents=True)
        # Written before the sources are read: what changes meanwhile has changed since.
        (fresh / form.RECORD).write_text(form.record_of(_core(root)), encoding="utf-8")
        _build(root, fresh, form.LIBRARY.removesuffix("__mypyc"))
        if into.exists():
            into.rename(old)
        fresh.rename(into)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def compile_native(root: pathlib.Path, into: pathlib.Path) -> list[pathlib.Path]:
    """A file that does not compile is left out, which is no error."""
    into.mkdir(parents=True, exist_ok=True)
    found = [_compile_native(root / "src" / "dgpu" / "agent" / name, into) for name in _NATIVE]
    return [made for made in found if made is not None]


def _compile_native(source: pathlib.Path, into: pathlib.Path) -> pathlib.Path | None:
    # The name that dgpu.agent.native looks for.
    made = into / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if made.exists():
        return made
    fresh = made.with_suffix(".new")
    options = [*_FREESTANDING, *_NATIVE[source.name]]
    command = [*shlex.split(c_compiler() or "cc"), *options, "-o", str(fresh), str(source)]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        fresh.replace(made)
        return made
    print(f"{source.name} is not compiled, tasks of other users only start slower.", file=sys.stderr)
    return None


@contextlib.contextmanager
def only_one(root: pathlib.Path) -> Iterator[None]:
    """Builds of one working copy share their intermediate files."""
    work = root / "build" / "core"
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_current(root: pathlib.Path, into: pathlib.Path) -> bool:
    form = _core_form(root)
    record = into / form.RECORD
    return (
        (into / f"{form.LIBRARY}{EXTENSION_SUFFIXES[0]}").is_file()
        and record.is_file()
        and record.stat().st_mtime_ns > pathlib.Path(__file__).stat().st_mtime_ns
        and record.read_text(encoding="utf-8") == form.record_of(_core(root))
    )


def _core(root: pathlib.Path) -> pathlib.Path:
    return root / "src" / "dgpu" / "core"


def _core_form(root: pathlib.Path) -> Any:
    """dgpu.core_form by its path: when this runs for an installation, there is no dgpu yet."""
    spec = importlib.util.spec_from_file_location("_core_form", root / "src" / "dgpu" / "core_form.py")
    if spec is None or spec.loader is None:
        raise ImportError("src/dgpu/core_form.py is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(root: pathlib.Path, into: pathlib.Path, name: str) -> None:
    os.chdir(root)  # mypy reads pyproject.toml here, and tracebacks name the sources as seen from here
    os.environ["CC"] = c_compiler() or "cc"
    import setuptools  # noqa: F401  it brings distutils, which newer Pythons lack
    from mypyc.build import mypycify

    # What another mypy or Python has left there is not mixed with it.
    work = pathlib.Path("build", "core", f"{EXTENSION_SUFFIXES[0].split('.')[1]}-{metadata.version('mypy')}")
    remarks = io.StringIO()
    try:
        with contextlib.redirect_stdout(remarks):
            extensions = mypycify(
                [str(path.relative_to(root)) for path in compiled_modules(_core(root))],
                multi_file=True,  # a C file for each module, so that all processors have work
                opt_level="1",  # 2 took half as long again and decided no faster
                debug_level="0",
                target_dir=str(work),
                group_name=name,
            )
    except SystemExit:
        print(remarks.getvalue(), file=sys.stderr)  # else it only tells what could be faster
        raise
    with tempfile.TemporaryDirectory(dir=work) as unfinished:
        _compile(extensions, into, unfinished)


def _compile(extensions: Iterable[Any], into: pathlib.Path, unfinished: str) -> None:
    """Not by setuptools' own command, which takes the C files of a library one after another."""
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    headers = [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]

    def to_object(source: str, extension: Any) -> str:
        (made,) = compiler.object_filenames([source])
        if not _is_newer(made, [source, *extension.depends, __file__]):
            (fresh,) = compiler.compile(
                [source],
                output_dir=unfinished,  # else half an object of a build that was killed would be taken for a whole one
                include_dirs=[*extension.include_dirs, *headers],
                extra_postargs=extension.extra_compile_args,
            )
            pathlib.Path(fresh).replace(made)
        return str(made)

    def link(extension: Any, objects: list[Future[str]]) -> None:
        target = into.joinpath(*extension.name.split("."))
        made = [each.result() for each in objects]
        compiler.link_shared_object(made, f"{target}{EXTENSION_SUFFIXES[0]}")

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        made = [
            (extension, [pool.submit(to_object, source, extension) for source in extension.sources])
            for extension in extensions
        ]
        # Submitted after all of the above: a link that waits never keeps a source from being compiled.
        for linked in [pool.submit(link, *each) for each in made]:
            linked.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _is_newer(made: str, sources: Iterable[str]) -> bool:
    path = pathlib.Path(made)
    return path.is_file() and all(
        path.stat().st_mtime_ns > pathlib.Path(each).stat().st_mtime_ns for each in sources
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "src" / "dgpu" / "_compiled")
    into = parser.parse_args().into.absolute()
    if c_compiler() is not None:
        compile_native(ROOT, ROOT / "src" / "dgpu" / "_native")
    reason = why_not()
    if reason is not None:
        print(f"The core is not compiled, only slower: {reason}.", file=sys.stderr)
        return
    with only_one(ROOT):
        if not is_current(ROOT, into):
            print("Compiling the core (a minute or two the first time) ...", file=sys.stderr)
            compile_core(ROOT, into)


if __name__ == "__main__":
    main()
