from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvml_world import Nvml, build_library


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda *flags: build_library(tmp_path_factory.mktemp("nvml"), *flags)


@pytest.fixture(scope="session")
def library(build) -> Path:
    return build()


@pytest.fixture
def nvml(library: Path, tmp_path: Path) -> Iterator[Nvml]:
    process = Nvml(library, tmp_path)
    yield process
    process.close()
