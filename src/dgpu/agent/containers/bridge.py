"""Bytes between the descriptors of this process and a program in a container, over a connection of the engine.

Standard library only. With a terminal, both sides are raw: the container has a terminal of its own, and that one
echoes, edits lines and turns Ctrl-C into a signal. Without one, the engine sends both streams in pieces with a header.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import tty
from collections.abc import Callable

_HEADER = struct.Struct(">BxxxI")  # stream and length of a piece of output
_STDERR = 2  # in it
_READ_BYTES = 32 * 1024

Resize = Callable[[int, int], None]  # rows, columns


class OwnTerminal:
    """The terminal that the keeper opened for this process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._last = (0, 0)

    def enter(self) -> None:
        """Becomes its controlling process, so that a change of its size is signalled."""
        with contextlib.suppress(OSError):  # it is already
            os.close(os.open(os.ttyname(self.fd), os.O_RDWR | os.O_CLOEXEC))

    def follow(self, resize: Resize) -> None:
        """Raw from now on. `resize` is called now, and in a thread with each signal: an engine may hang."""
        tty.setraw(self.fd)
        lock = threading.Lock()

        def tell() -> None:
            with lock:
                size = os.get_terminal_size(self.fd)
                rows, columns = size.lines, size.columns
                if not rows or not columns:
                    return
                if (rows, columns) == self._last:
                    # A client that attaches wants a new picture, and only a change makes programs draw one.
                    resize(rows, columns + 1)
                self._last = (rows, columns)
                resize(rows, columns)

        def on_change(*_: object) -> None:
            threading.Thread(target=tell, daemon=True).start()

        signal.signal(signal.SIGWINCH, on_change)
        tell()  # at once: until then, the program sees a terminal without a size


def copy_input(fd: int, link: socket.socket) -> None:
    """Until its end, which the program then reads, too."""
    with contextlib.suppress(OSError):
        while data := os.read(fd, _READ_BYTES):
            link.sendall(data)
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_WR)


def copy_raw(link: socket.socket, fd: int) -> None:
    with contextlib.suppress(OSError):
        while data := link.recv(_READ_BYTES):
            write_all(fd, data)


def copy_pieces(read: Callable[[int], bytes], output_fd: int, errors_fd: int) -> None:
    """`read`: at most so many bytes. Both streams, in the order in which the engine sends their pieces."""
    while len(header := _exactly(read, _HEADER.size)) == _HEADER.size:
        stream, left = _HEADER.unpack(header)
        while left and (piece := read(left)):
            left -= len(piece)
            write_all(errors_fd if stream == _STDERR else output_fd, piece)


def in_thread(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def write_all(fd: int, text: bytes) -> None:
    while text:
        text = text[os.write(fd, text) :]


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := read(size - len(found))):
        found += piece
    return found
