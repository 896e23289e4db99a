"""A person at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import termios
import time

from e2e.conftest import PATIENCE_SECONDS


class Typist:
    """`dgpu` with a terminal of its own; `text` is all that it has shown."""

    def __init__(self, place, *arguments, size=(24, 80)):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place.home)
            os.execve(place.command()[0], place.command(*arguments), place.env)
        self.resize(*size)
        self.text = b""
        self.code = None

    def resize(self, rows, columns):
        termios.tcsetwinsize(self.fd, (rows, columns))

    def type(self, keys):
        os.write(self.fd, keys)

    def sees(self, wanted):
        """Waits for it, after what was seen before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(wanted, self.text)):
            assert self._read(deadline - time.monotonic()), f"no {wanted!r} in {self.text!r}"
        self.text = self.text[found.end() :]
        return found

    def ends(self):
        """The exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline - time.monotonic()):
            pass
        assert time.monotonic() < deadline, f"does not end: {self.text!r}"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def _read(self, seconds):
        if not select.select([self.fd], [], [], max(0, seconds))[0]:
            return False
        try:
            read = os.read(self.fd, 65_536)
        except OSError:
            return False
        self.text += read
        return bool(read)


@contextlib.contextmanager
def typing(place, *arguments, **options):
    typist = Typist(place, *arguments, **options)
    try:
        yield typist
    finally:
        typist.close()
