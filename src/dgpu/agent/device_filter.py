"""Lets the processes of a control group (v2) open only the granted /dev/nvidiaN. Standard library only.

A v2 group has no file for that: the kernel asks a small program (eBPF), which is made here instruction by instruction.
All other devices stay as the permissions of their files say: a task is not root.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

NVIDIA_MAJOR = 195
CONTROL_MINORS = (254, 255)  # nvidia-modeset and nvidiactl: needed with any GPU
MAX_MINORS = 64

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE_ATTACH = 15, 6
_ALLOW_MULTI = 2  # a filter of a parent group stays in force
_ATTRIBUTES_BYTES = 128

# Instructions: (code, registers, offset, constant)
_LOAD_WORD, _JUMP_EQUAL, _JUMP_NOT_EQUAL, _MOVE, _EXIT = 0x61, 0x15, 0x55, 0xB7, 0x95
_MAJOR_OFFSET, _MINOR_OFFSET = 4, 8  # of struct bpf_cgroup_dev_ctx

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class DeviceFilters:
    """One program for each set of GPUs, loaded once."""

    def __init__(self) -> None:
        self._programs: dict[tuple[int, ...], int] = {}

    @property
    def are_usable(self) -> bool:
        """Whether this process may load such programs: it is root, and the kernel has them."""
        try:
            self._program(())
        except OSError:
            return False
        return True

    def close(self) -> None:
        for program in self._programs.values():
            os.close(program)
        self._programs.clear()

    def attach(self, group: int, minors: Iterable[int]) -> None:
        """`group`: descriptor of its directory. Raises OSError."""
        program = self._program(tuple(sorted(set(minors))))
        _bpf(_PROG_ATTACH, struct.pack("=IIII", group, program, _CGROUP_DEVICE_ATTACH, _ALLOW_MULTI))

    def _program(self, minors: tuple[int, ...]) -> int:
        if minors not in self._programs:
            self._programs[minors] = load(minors)
        return self._programs[minors]


def load(minors: tuple[int, ...]) -> int:
    """The descriptor of a program that refuses every other GPU. Raises OSError."""
    if len(minors) > MAX_MINORS:
        raise OSError(f"more than {MAX_MINORS} GPUs")
    code = instructions(minors)
    text = ctypes.create_string_buffer(code)
    license_name = ctypes.create_string_buffer(b"GPL")
    fields = struct.pack(
        "=IIQQ",
        _CGROUP_DEVICE_PROGRAM,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(license_name),
    )
    return _bpf(_PROG_LOAD, fields)


def instructions(minors: tuple[int, ...]) -> bytes:
    allowed = (*minors, *CONTROL_MINORS) if minors else ()
    # r2 = major; any other device is allowed. r3 = minor; a jump to the end with 1 for each allowed one.
    body = [(_LOAD_WORD, 0x12, _MAJOR_OFFSET, 0), (_JUMP_NOT_EQUAL, 0x02, len(allowed) + 3, NVIDIA_MAJOR)]
    body.append((_LOAD_WORD, 0x13, _MINOR_OFFSET, 0))
    body += [(_JUMP_EQUAL, 0x03, len(allowed) - number + 1, minor) for number, minor in enumerate(allowed)]
    body += [(_MOVE, 0x00, 0, 0), (_EXIT, 0, 0, 0), (_MOVE, 0x00, 0, 1), (_EXIT, 0, 0, 0)]
    return b"".join(struct.pack("=BBhi", *each) for each in body)


def _bpf(command: int, fields: bytes) -> int:
    number = _SYS_BPF.get(platform.machine())
    if number is None:
        raise OSError(f"not known on {platform.machine()}")
    attributes = ctypes.create_string_buffer(fields.ljust(_ATTRIBUTES_BYTES, b"\0"), _ATTRIBUTES_BYTES)
    result = _libc.syscall(
        ctypes.c_long(number), ctypes.c_long(command), attributes, ctypes.c_long(_ATTRIBUTES_BYTES)
    )
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(result)
