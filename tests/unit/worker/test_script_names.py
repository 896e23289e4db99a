"""Scripts that a worker cannot import are refused before the submit."""

from __future__ import annotations

import pathlib

import pytest

from dgpu.functions.code import CodeNotFoundError, Source, _script


def test_a_script_is_a_module(tmp_path) -> None:
    (tmp_path / "with space").mkdir()
    script = tmp_path / "with space" / "job-2.py"
    script.touch()
    assert _script(script) == Source("job-2", script.parent)


@pytest.mark.parametrize("name", ["my job.py", "train.v2.py", "übung.py"])
def test_a_name_that_is_no_module_is_told(tmp_path, name) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CodeNotFoundError, match=f"cannot import '{name}': .* Rename the file"):
        _script(tmp_path / name)


def test_a_program_from_standard_input_is_told() -> None:
    with pytest.raises(CodeNotFoundError, match=r"came from <stdin>.*put it into a file"):
        _script(pathlib.Path("<stdin>"))
