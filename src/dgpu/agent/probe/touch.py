"""Allocates a little memory of the one visible GPU, writes it, reads it back, frees it: `python -m` this module.

It runs as a separate process, because a broken GPU may hang or kill it. Exit code 0: passed; 1: failed, with the
reason on stdout; 77: cannot be tested here (no CUDA driver library).
"""

from __future__ import annotations

import ctypes
import sys

CANNOT_TRY = 77
SIZE_BYTES = 64 * 1024 * 1024
_PATTERN = 0xA5


class TouchError(Exception):
    """One line for people."""


def touch(library: ctypes.CDLL) -> None:
    def call(name: str, *arguments: object) -> None:
        code = getattr(library, name)(*arguments)
        if code:
            raise TouchError(f"{name} failed: {_error_name(library, code)}")

    call("cuInit", 0)
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    memory = ctypes.c_uint64()
    size = ctypes.c_size_t(SIZE_BYTES)
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(_PATTERN), size)
    read = (ctypes.c_ubyte * SIZE_BYTES)()
    call("cuMemcpyDtoH_v2", read, memory, size)
    if bytes(read).count(_PATTERN) != SIZE_BYTES:
        raise TouchError("the card's memory does not hold what was written to it")
    call("cuMemFree_v2", memory)
    call("cuDevicePrimaryCtxRelease_v2", device)


def _error_name(library: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    return (name.value or b"unknown error").decode(errors="replace") + f" ({code})"


def main() -> int:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.stdout.write(f"no CUDA driver library: {error}\n")
        return CANNOT_TRY
    try:
        touch(library)
    except (TouchError, AttributeError) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{SIZE_BYTES >> 20} MiB written and read back\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
