from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvml_world import HERE, Nvml


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML of the tests")

    def compile_library(*flags: str) -> Path:
        library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
        subprocess.run(
            (compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", library, HERE / "fake_nvml.c"),
            check=True,
            timeout=120,
        )
        return library

    return compile_library


@pytest.fixture(scope="session")
def library(build) -> Path:
    return build()


@pytest.fixture
def nvml(library: Path, tmp_path: Path) -> Iterator[Nvml]:
    process = Nvml(library, tmp_path)
    yield process
    process.close()
