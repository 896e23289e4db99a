"""Finds the keys that detach from a terminal: Ctrl-P, then Ctrl-Q. No I/O."""

from __future__ import annotations

FIRST = b"\x10"  # Ctrl-P
SECOND = b"\x11"  # Ctrl-Q


class DetachKeys:
    """A Ctrl-P is held back until the next key."""

    def __init__(self) -> None:
        self._holds_first = False
        self.are_pressed = False

    def feed(self, typed: bytes) -> bytes:
        """The keys for the program. Keys after the two are dropped."""
        passed = bytearray()
        for key in (typed[place : place + 1] for place in range(len(typed))):
            if self._holds_first and key == SECOND:
                self.are_pressed = True
                break
            if self._holds_first:
                passed += FIRST
            self._holds_first = key == FIRST
            if not self._holds_first:
                passed += key
        return bytes(passed)
