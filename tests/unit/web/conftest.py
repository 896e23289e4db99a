from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType

import pytest

WEB = pathlib.Path(__file__).parents[3] / "web"


def load(name: str) -> ModuleType:
    """A script of web/, which is not in a package."""
    spec = importlib.util.spec_from_file_location(f"dgpu_web_{name}", WEB / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def web() -> ModuleType:
    return load("bundle")


@pytest.fixture
def wire_types() -> ModuleType:
    return load("wire_types")
