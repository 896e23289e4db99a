from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from dgpu.functions.code import source_of
from dgpu.functions.versions import version_of


def test_the_version_changes_with_the_file_also_if_the_module_was_found_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home directories are often links. Without a new version, warm workers would run the old code."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "found_by_link.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path / "link")
    module = importlib.import_module("found_by_link")
    monkeypatch.setitem(sys.modules, "found_by_link", module)
    source = source_of(module.f)
    assert source is not None
    assert source.root is not None
    before = version_of(source.root, source.module)
    os.utime(real / "found_by_link.py", ns=(1, 1))
    assert version_of(source.root, source.module) != before
