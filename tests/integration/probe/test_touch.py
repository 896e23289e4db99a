"""The memory check against the CUDA library of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the CUDA library of the tests")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    command = (compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, HERE / "fake_cuda.c")
    subprocess.run(command, check=True, timeout=120)
    return library


def touch(library: Path, mode: str) -> tuple[int, str]:
    done = subprocess.run(
        (sys.executable, "-m", "dgpu.agent.probe.touch"),
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_CUDA": mode},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_memory_that_holds_what_was_written_is_well(library: Path) -> None:
    assert touch(library, "ok") == (0, "64 MiB written and read back\n")


def test_a_single_flipped_bit_is_found(library: Path) -> None:
    code, words = touch(library, "forgetful")
    assert code == 1
    assert "does not hold what was written" in words


def test_a_card_that_gives_no_memory_is_named_with_the_drivers_word(library: Path) -> None:
    code, words = touch(library, "broken")
    assert code == 1
    assert "cuMemAlloc_v2 failed: CUDA_ERROR_DEVICE_UNAVAILABLE (46)" in words
