"""The filter of GPUs, and which device files belong to which GPU."""

from __future__ import annotations

import struct

import pytest

from dgpu.agent.boundaries import minors_of
from dgpu.agent.device_filter import NVIDIA_MAJOR, instructions


def allows(program: bytes, major: int, minor: int) -> bool:
    """Runs the few instructions that the filter uses, as the kernel does."""
    context, registers, place = {4: major, 8: minor}, [0] * 10, 0
    while True:
        code, both, offset, constant = struct.unpack_from("=BBhi", program, place * 8)
        target = both & 0x0F
        place += 1
        if code == 0x61:
            registers[target] = context[offset]
        elif code == 0xB7:
            registers[target] = constant
        elif code == 0x95:
            return bool(registers[0])
        elif (registers[target] == constant) == (code == 0x15):
            place += offset


@pytest.mark.parametrize("granted", [(), (0,), (1, 3), tuple(range(64))])
def test_only_granted_gpus_and_other_devices_can_be_opened(granted) -> None:
    program = instructions(granted)
    for minor in range(66):
        assert allows(program, NVIDIA_MAJOR, minor) is (minor in granted)
    for control in (254, 255):
        assert allows(program, NVIDIA_MAJOR, control) is bool(granted)
    assert allows(program, 1, 3)  # /dev/null
    assert allows(program, 1, 5)


def test_device_files_are_found_by_uuid(tmp_path) -> None:
    for number, bus in enumerate(("0000:01:00.0", "0000:02:00.0")):
        (tmp_path / bus).mkdir()
        text = f"Model: \t\t V100\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\nGPU Excluded:\t No\n"
        (tmp_path / bus / "information").write_text(text)
    assert minors_of(["GPU-1"], tmp_path) == [1]
    assert minors_of([], tmp_path) == []
    assert minors_of(["MIG-5"], tmp_path) is None
    assert minors_of(["simulated"], tmp_path) == []
