"""Starts a program in a control group (v2), by spawn_into.c. Standard library only; runs in the keeper."""

from __future__ import annotations

import ctypes
import os

from dgpu.agent.native import find_native


class SpawnInto:
    def __init__(self) -> None:
        path = find_native("spawn_into.c")
        try:
            self._library = ctypes.CDLL(path) if path else None
        except OSError:  # made for another machine
            self._library = None
        if self._library is not None:
            self._library.spawn_into.restype = ctypes.c_long

    def spawn(
        self, group: int, program: str, argv: list[str], env: dict[str, str], fds: tuple[int, int, int, int]
    ) -> int | None:
        """The pid. `fds`: for input, output and errors, and one more that stays open. Raises ValueError.

        None: the library or the kernel (before Linux 5.7) cannot do it, or the program does not start: posix_spawn then
        tells why.
        """
        if self._library is None:
            return None
        if any(not name or "=" in name for name in env):
            raise ValueError("illegal environment variable name")
        arguments, environment = _strings(argv), _strings([f"{name}={value}" for name, value in env.items()])
        pid: int = self._library.spawn_into(group, os.fsencode(program), arguments, environment, *fds)
        return pid if pid > 0 else None


def _strings(texts: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [*map(os.fsencode, texts)]
    if any(b"\0" in text for text in encoded):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded)
