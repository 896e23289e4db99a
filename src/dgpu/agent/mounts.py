"""Whether a path can be used without waiting for another machine. Standard library only.

The keeper must not touch a path on a network file system: a dead server would stop it. So a path is followed step by
step, and each step is looked up in the mount table before it is touched.
"""

from __future__ import annotations

import os
import select

# All others may hang: network file systems, FUSE, and mount points that are filled in on access.
_LOCAL = frozenset(
    {
        "bcachefs", "btrfs", "cgroup2", "devpts", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
        "hugetlbfs", "iso9660", "jfs", "nilfs2", "ntfs3", "overlay", "proc", "ramfs", "reiserfs", "rootfs",
        "squashfs", "sysfs", "tmpfs", "udf", "vfat", "xfs", "zfs",
    }
)  # fmt: skip
_MAX_LINKS = 40  # as the kernel
_HEAD_BYTES = 256


class Mounts:
    def __init__(self, table: str = "/proc/self/mountinfo") -> None:
        self._table = os.open(table, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._table, select.POLLPRI | select.POLLERR)
        self._types: dict[str, str] = {}
        self._read()

    def refresh(self) -> bool:
        """Whether the table has changed since the last call."""
        if not self._changes.poll(0):
            return False
        self._read()
        return True

    def is_local(self, path: str) -> bool:
        """Whether every step of an absolute path is on this machine. True for a path that does not exist."""
        return self._walk(path)

    def is_local_program(self, path: str) -> bool:
        """The file and, for a script, its interpreter."""
        if not self.is_local(path):
            return False
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return True  # the start will report the error
        try:
            head = os.read(fd, _HEAD_BYTES)
        except OSError:
            return True
        finally:
            os.close(fd)
        if not head.startswith(b"#!"):
            return True
        words = head[2:].split(b"\n")[0].split()
        return not words or self.is_local(os.fsdecode(words[0]))

    def _walk(self, path: str) -> bool:
        if not path.startswith("/"):
            return False
        left = path.split("/")[::-1]
        here, kind, links = "", self._types.get("/", ""), 0
        if kind not in _LOCAL:
            return False
        while left:
            step = left.pop()
            if step in {"", "."}:
                continue
            if step == "..":
                here = here.rpartition("/")[0]
                continue
            following = f"{here}/{step}"
            if self._types.get(following, "ext4") not in _LOCAL:
                return False
            try:
                target = os.readlink(following)  # noqa: PTH115 - on the path of every start
            except (OSError, ValueError):
                here = following  # not a link, or it does not exist
                continue
            links += 1
            if links > _MAX_LINKS:
                return True  # the kernel refuses it
            left += target.split("/")[::-1]
            if target.startswith("/"):
                here = ""
        return True

    def _read(self) -> None:
        self._types = {}
        parts = []
        os.lseek(self._table, 0, os.SEEK_SET)
        while part := os.read(self._table, 65_536):
            parts.append(part)
        for line in b"".join(parts).splitlines():
            before, _, after = line.partition(b" - ")
            fields = before.split()
            if len(fields) > 4 and after:
                # The last mount on a mount point hides the others.
                self._types[_unescaped(fields[4])] = after.split()[0].decode(errors="replace")


def _unescaped(path: bytes) -> str:
    for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        path = path.replace(code, character)
    return os.fsdecode(path)
