"""A process that probes through the NVML of the tests, and the file that tells that NVML what there is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "integration" / "probe"
NO_PERMISSION, NOT_SUPPORTED, DRIVER_NOT_LOADED, LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = (
    4,
    3,
    9,
    15,
    16,
    18,
    999,
)


def build_library(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML of the tests")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        (compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", library, HERE / "fake_nvml.c"),
        check=True,
        timeout=120,
    )
    return library


def write_world(control: Path, *cards: Card, more: str = "") -> None:
    """Tells an NVML of the tests what there is. `more`: further lines, see fake_nvml.c."""
    fresh = control.with_suffix(".new")
    fresh.write_text("\n".join([*(card.line() for card in cards), more, ""]))
    fresh.replace(control)


class Card:
    def __init__(self, uuid: str, name: str = "NVIDIA V100", **figures: int) -> None:
        self.uuid = uuid
        self.name = name
        self.figures = {
            "total": 32768,
            "used": 100,
            "util": 7,
            "temp": 41,
            "power": 55_400,
            "code": 0,
            **figures,
        }

    def line(self) -> str:
        f = self.figures
        return f"gpu {self.uuid}|{self.name}|{f['total']}|{f['used']}|{f['util']}|{f['temp']}|{f['power']}|{f['code']}"


class Nvml:
    """A process that probes, and the file that tells its NVML what there is."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.control = folder / "world"
        self.world(Card("GPU-a"), Card("GPU-b"))
        self._process = subprocess.Popen(
            (sys.executable, str(HERE / "nvml_child.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library.parent),
                "FAKE_NVML_CONTROL": str(self.control),
                "PATH": str(folder),  # no nvidia-smi of the machine
            },
        )

    def world(self, *cards: Card, more: str = "") -> None:
        write_world(self.control, *cards, more=more)

    def ask(self, verb: str, argument: Any = None) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, argument]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ok(self, verb: str, argument: Any = None) -> Any:
        reply = self.ask(verb, argument)
        assert "ok" in reply, reply
        return reply["ok"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
