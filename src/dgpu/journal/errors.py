# ruff: noqa: N818 - the names describe the state of the journal
"""The errors of a journal.

JournalError
├── JournalBroken     a write or an fsync failed: the process must end and acknowledge nothing more
├── NotWritten        a group is certainly not stored, and the journal is intact: it can be tried again later
├── JournalLocked     another process uses the directory
├── CorruptJournal    durable bytes are damaged or missing: refused, with file and offset
│   └── LostTail      the latest groups are missing; an operator may accept that
├── ForeignState      a file belongs to another cluster
├── NewerVersion      a newer version of dgpu wrote it: refused, because reading it would lose new fields
└── SnapshotDamaged   one snapshot file is damaged; an older one may be valid
"""

from __future__ import annotations


class JournalError(Exception):
    pass


class JournalBroken(JournalError):
    """The OSError is the cause. After a failed fsync the kernel may have dropped the pages: never try again."""


class NotWritten(JournalError):
    """No restart can find the group. `gone`: files are missing; otherwise the disk is full."""

    def __init__(self, why: str, *, gone: bool = False) -> None:
        super().__init__(why)
        self.gone = gone


class JournalLocked(JournalError):
    def __init__(self, directory: str, holder: str) -> None:
        super().__init__(f"{directory} is in use already, by process {holder}")
        self.directory = directory
        self.holder = holder


class CorruptJournal(JournalError):
    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(f"{file}, offset {offset}: {why}")
        self.file = file
        self.offset = offset
        self.why = why


class LostTail(CorruptJournal):
    """`index`: the last group in the journal; `known`: the last group known elsewhere."""

    def __init__(self, file: str, offset: int, why: str, *, index: int, known: int) -> None:
        super().__init__(file, offset, why)
        self.index = index
        self.known = known

    def __str__(self) -> str:
        return self.why


class ForeignState(JournalError):
    pass


class NewerVersion(JournalError):
    def __init__(self, file: str, what: str) -> None:
        super().__init__(
            f"{file} was written by a newer version of dgpu: {what}. Use that version or a later one; to go back, "
            f"restore a copy of the directory from before the upgrade"
        )
        self.file = file


class SnapshotDamaged(JournalError):
    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why
