"""The core runs compiled where that is possible, and the same sources run everywhere else."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from dgpu.core_form import COMPILED, FORM, LIBRARY, RECORD

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import compile_core  # noqa: E402

MADE = ROOT / "src" / "dgpu" / "_compiled"
LOOK = """
import dgpu.core_form, dgpu.core.index.queue, dgpu.core.rules.place, dgpu.core.model.task
print(dgpu.core_form.FORM)
for module in (dgpu.core.index.queue, dgpu.core.rules.place, dgpu.core.model.task):
    print(module.__file__)
"""


def test_it_is_compiled_wherever_there_is_a_compiler() -> None:
    """Else it could fall back for ever and nobody would see it."""
    if os.environ.get("DGPU_INTERPRETED") == "1":
        pytest.skip("DGPU_INTERPRETED=1: the interpreted form is to be tested")
    reason = compile_core.why_not()
    if reason is not None:
        pytest.skip(f"the core cannot be compiled here: {reason}")
    assert FORM == COMPILED, "make core compiles it; DGPU_INTERPRETED=1 tests it as it is"


# what is compiled


def test_modules_with_structs_are_left_alone(tmp_path) -> None:
    sources = {
        "__init__.py": "",
        "events.py": "import msgspec\nclass Event(msgspec.Struct, frozen=True): ...",
        "more.py": "from package import events\nclass Started(events.Event): ...",
        "most.py": "from package.more import Started\nclass Restarted(Started): ...",
        "short.py": "from msgspec import Struct\nclass Value(Struct): ...",
        "inner/__init__.py": "",
        "inner/room.py": "from typing import NamedTuple\nclass Room(NamedTuple):\n    gpus: int",
        "lane.py": "class Lane: ...",
        "count.py": "def count(): ...",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [str(path.relative_to(tmp_path)) for path in compile_core.compiled_modules(tmp_path)]
    assert found == ["count.py", "inner/room.py", "lane.py"]


def test_what_decides_is_compiled_and_what_is_decoded_is_not() -> None:
    core = ROOT / "src" / "dgpu" / "core"
    found = {str(path.relative_to(core)) for path in compile_core.compiled_modules(core)}
    assert {"execute.py", "state.py", "index/queue.py", "rules/place.py"} <= found
    assert not {"commands.py", "events.py", "rejections.py", "model/task.py"} & found


def test_an_isolated_build_uses_the_locked_versions() -> None:
    lock = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    assert [pin for pin in compile_core.REQUIREMENTS if f"{pin} \\" not in lock] == []


# what is loaded


@pytest.fixture
def copy(tmp_path) -> pathlib.Path:
    """The package as it is here, with its compiled core, in a directory where it may be spoilt."""
    if not compile_core.is_current(ROOT, MADE):
        pytest.skip("the core is not compiled here, or has changed since (make core)")
    for name in ("__init__.py", "core_form.py", "core", "_compiled"):
        source, target = MADE.parent / name, tmp_path / "dgpu" / name
        copied = shutil.copytree if source.is_dir() else shutil.copy2
        target.parent.mkdir(exist_ok=True)
        copied(source, target)
    return tmp_path / "dgpu"


def looked_at(copy: pathlib.Path, **environment: str) -> tuple[str, list[str]]:
    """The form that a process tells, and the suffixes of lane, rules.place and task."""
    inherited = {name: value for name, value in os.environ.items() if name != "DGPU_INTERPRETED"}
    told = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**inherited, "PYTHONPATH": str(copy.parent), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    form, *files = told.stdout.splitlines()
    assert all(pathlib.Path(file).is_relative_to(copy) and pathlib.Path(file).is_file() for file in files)
    return form, [pathlib.Path(file).suffix for file in files]


INTERPRETED = [".py", ".py", ".py"]


def test_the_compiled_form_is_taken_and_structs_are_read_from_their_sources(copy) -> None:
    assert looked_at(copy) == ("compiled", [".so", ".so", ".py"])


def test_a_variable_asks_for_the_sources(copy) -> None:
    form, suffixes = looked_at(copy, DGPU_INTERPRETED="1")
    assert (form, suffixes) == ("interpreted: DGPU_INTERPRETED=1 is set", INTERPRETED)


def test_nothing_compiled_is_no_error(copy) -> None:
    shutil.rmtree(copy / "_compiled")
    assert looked_at(copy) == ("interpreted: not compiled", INTERPRETED)


@pytest.mark.parametrize("changed", ["state.py", "model/task.py", "rules/place.py", "rules/__init__.py"])
def test_a_changed_source_is_never_shadowed(copy, changed) -> None:
    with (copy / "core" / changed).open("a") as source:
        source.write("# changed\n")
    form, suffixes = looked_at(copy)
    assert (form, suffixes) == (
        "interpreted: the sources have changed since they were compiled",
        INTERPRETED,
    )


def test_a_source_of_the_same_size_and_another_time_has_changed(copy) -> None:
    (copy / "core" / "index" / "queue.py").touch()
    assert looked_at(copy)[1] == INTERPRETED


def test_an_added_or_removed_module_is_a_change(copy) -> None:
    added = copy / "core" / "rules" / "added.py"
    added.touch()
    assert looked_at(copy)[1] == INTERPRETED
    added.unlink()
    assert looked_at(copy)[0] == COMPILED
    (copy / "core" / "invariants.py").unlink()
    assert looked_at(copy)[1] == INTERPRETED


def test_an_installed_one_is_not_compared_with_its_sources(copy) -> None:
    (copy / "_compiled" / RECORD).unlink()
    (copy / "core" / "index" / "queue.py").touch()
    assert looked_at(copy)[0] == COMPILED


def test_what_was_compiled_for_another_python_is_left_alone(copy) -> None:
    library = copy / "_compiled" / f"{LIBRARY}{EXTENSION_SUFFIXES[0]}"
    library.rename(library.with_name(f"{LIBRARY}.cpython-399-none.so"))
    assert looked_at(copy) == ("interpreted: compiled for another Python", INTERPRETED)


def test_a_broken_library_is_left_alone_and_the_reason_is_told(copy) -> None:
    (copy / "_compiled" / f"{LIBRARY}{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    form, suffixes = looked_at(copy)
    assert form.startswith("interpreted: the compiled form cannot be loaded (")
    assert suffixes == INTERPRETED


# how it is made


def test_a_build_that_fails_leaves_the_former_result(tmp_path, monkeypatch) -> None:
    into = tmp_path / "_compiled"
    into.mkdir()
    (into / "former").touch()

    def broken(root: pathlib.Path, fresh: pathlib.Path, name: str) -> None:
        (fresh / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_core, "_build", broken)
    with pytest.raises(KeyboardInterrupt):
        compile_core.compile_core(ROOT, into)
    assert [path.name for path in tmp_path.rglob("*")] == ["_compiled", "former"]


def test_without_a_compiler_it_is_said_and_goes_on(tmp_path) -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "compile_core.py", "--into", tmp_path / "none"],
        env={**os.environ, "CC": "/nowhere/cc"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stderr == "The core is not compiled, only slower: there is no C compiler.\n"
    assert list(tmp_path.iterdir()) == []


# wheels


@pytest.fixture
def project(tmp_path) -> pathlib.Path:
    """What a wheel is made of. Not here: the hook writes into the sources, and other tests read them."""
    copied = tmp_path / "project"
    unneeded = shutil.ignore_patterns("node_modules", "__pycache__", ".node", "wheel")
    for name in ("src", "web", "build"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copied / name, ignore=unneeded)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copied)
    return copied


def wheel_of(project: pathlib.Path, **environment: str) -> zipfile.ZipFile:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(build, cwd=project, env={**os.environ, **environment}, check=True)
    (wheel,) = (project / "dist").iterdir()
    return zipfile.ZipFile(wheel)


@pytest.mark.slow
def test_a_wheel_made_without_a_compiler_is_for_every_platform(project) -> None:
    """Also where an earlier build has left something compiled."""
    (project / "src" / "dgpu" / "_compiled").mkdir(exist_ok=True)
    (project / "src" / "dgpu" / "_compiled" / "left.so").touch()
    with wheel_of(project, CC="/nowhere/cc") as wheel:
        assert wheel.filename.endswith("-py3-none-any.whl")
        assert [name for name in wheel.namelist() if "_compiled" in name] == []
        assert "dgpu/core/index/queue.py" in wheel.namelist()


@pytest.mark.slow
def test_a_wheel_with_a_compiled_core_is_for_its_platform_and_runs(project, tmp_path) -> None:
    if not compile_core.is_current(ROOT, MADE):
        pytest.skip("the core is not compiled here, or has changed since (make core)")
    with wheel_of(project) as wheel:
        assert not wheel.filename.endswith("-any.whl")
        wheel.extractall(tmp_path / "installed")
    assert not (tmp_path / "installed" / "dgpu" / "_compiled" / RECORD).exists()
    assert looked_at(tmp_path / "installed" / "dgpu") == ("compiled", [".so", ".so", ".py"])
