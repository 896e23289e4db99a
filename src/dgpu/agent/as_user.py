"""File access with the rights of another Unix user, in one thread of an agent that is root.

The kernel keeps the user and groups for file access per thread. The C library changes groups in all threads at once,
so the system calls are made directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Sequence

_CALLS = {  # setgroups, setfsuid, setfsgid
    "x86_64": (116, 122, 123),
    "aarch64": (159, 151, 152),
}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@contextlib.contextmanager
def files_as(uid: int, gid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """Raises OSError before anything is accessed, if the user cannot be changed."""
    if (uid, gid) == (os.geteuid(), os.getegid()):
        yield
        return
    calls = _CALLS.get(platform.machine())
    if calls is None:
        raise OSError(f"files of other users cannot be read on {platform.machine()}")
    own_groups = os.getgroups()
    try:
        _change(calls, uid, gid, groups)
        yield
    finally:
        _change(calls, os.geteuid(), os.getegid(), own_groups)


def _change(calls: tuple[int, int, int], uid: int, gid: int, groups: Sequence[int]) -> None:
    setgroups, setfsuid, setfsgid = calls
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    # Root's rights end with the change of the user, and return with it: so it is the last of the three, or the first.
    if uid == os.geteuid():
        _libc.syscall(setfsuid, ctypes.c_long(uid))
    if _libc.syscall(setgroups, ctypes.c_long(len(groups)), listed) != 0:
        raise OSError(ctypes.get_errno(), "cannot change groups")
    _libc.syscall(setfsgid, ctypes.c_long(gid))
    _libc.syscall(setfsuid, ctypes.c_long(uid))
    if _libc.syscall(setfsuid, ctypes.c_long(-1)) != uid or _libc.syscall(setfsgid, ctypes.c_long(-1)) != gid:
        raise OSError("cannot change the user for file access")
