"""Detects input on stdin, which never reaches a task. The user must be told."""

from __future__ import annotations

import array
import fcntl
import os
import stat
import termios

_STDIN = 0


def unread_input() -> str:
    """`pipe` or `file` if stdin has bytes. Nothing is read: a shell loop may need them."""
    try:
        mode = os.fstat(_STDIN).st_mode
        if stat.S_ISREG(mode):
            return "file" if os.fstat(_STDIN).st_size > os.lseek(_STDIN, 0, os.SEEK_CUR) else ""
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return "pipe" if _waiting_bytes() else ""
    except OSError:  # closed
        pass
    return ""


def _waiting_bytes() -> int:
    waiting = array.array("i", [0])
    fcntl.ioctl(_STDIN, termios.FIONREAD, waiting)
    return waiting[0]
