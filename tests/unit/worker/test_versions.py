"""The version of code on disk changes with the files that a worker would import."""

from __future__ import annotations

import pathlib
import sys

import pytest

from dgpu.functions.versions import found_version, this_python, version_of


@pytest.fixture
def project(tmp_path) -> pathlib.Path:
    texts = {
        "job.py": "import helper\nfrom package import part\nimport importlib\nimportlib.import_module('late')\n",
        "helper.py": "import json\n",
        "late.py": "",
        "other.py": "",
        "broken.py": "def (",
        "package/__init__.py": "",
        "package/part.py": "from . import beside\nfrom .deep.inner import x\n",
        "package/beside.py": "",
        "package/deep/inner.py": "x = 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "job.py",
        "helper.py",
        "late.py",
        "package/__init__.py",
        "package/part.py",
        "package/beside.py",
        "package/deep/inner.py",
    ],
)
def test_a_change_of_an_imported_file_is_seen(project, name) -> None:
    before = version_of(project, "job")
    (project / name).write_text((project / name).read_text() + "\n# changed")
    assert version_of(project, "job") != before


def test_other_files_do_not_count(project) -> None:
    before = version_of(project, "job")
    (project / "other.py").write_text("changed")
    assert version_of(project, "job") == before
    assert version_of(project, "package.part") != before


def test_the_place_of_the_project_does_not_count(project, tmp_path_factory) -> None:
    moved = tmp_path_factory.mktemp("moved") / "project"
    before = version_of(project, "job")
    project.rename(moved)
    assert version_of(moved, "job") == before


def test_the_first_directory_with_the_module_counts(project, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert found_version("job", [str(empty), str(project)]) == version_of(project, "job")
    assert found_version("job", [str(empty)]) == ""
    assert found_version("broken", [str(project)])


def test_one_interpreter_has_one_name(monkeypatch, tmp_path) -> None:
    (tmp_path / "python3").touch()
    for name in ("python", "python3.11"):
        (tmp_path / name).symlink_to("python3")
        monkeypatch.setattr(sys, "executable", str(tmp_path / name))
        assert this_python() == str(tmp_path / "python3")
    (tmp_path / "pypy").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pypy"))
    assert this_python() == str(tmp_path / "pypy")
