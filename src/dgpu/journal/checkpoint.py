"""The running hash of the local groups: a small file with the hash at one index, and the groups after it.

The file may be behind, so it need not be written for every group. It is never ahead of the durable groups.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.journal.engine import extended
from dgpu.journal.format import encode_record
from dgpu.journal.segments import JOURNAL_FOLDER, chain, live_name, live_segments, scans

CHECKPOINT_NAME = "chain"
_FIRST_SEGMENT_BYTES = 1 << 20


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    chain: bytes = b""


def read_checkpoint(directory: Path) -> Checkpoint:
    """A missing or damaged file: the hash is computed from the first group on."""
    try:
        line = (directory / CHECKPOINT_NAME).read_bytes()
        index, digest, _ = line.split()
        found = Checkpoint(index=int(index), chain=bytes.fromhex(digest.decode()))
    except (OSError, ValueError):
        return Checkpoint()
    return found if _line(found) == line else Checkpoint()


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Raises OSError."""
    write_file(directory / CHECKPOINT_NAME, _line(checkpoint))
    sync_folder(directory)


def begin_after_snapshot(directory: Path, checkpoint: Checkpoint) -> None:
    """The copy begins after the snapshot of this directory. The checkpoint is its index and hash.

    The segment comes last: without it, the directory is still empty.
    """
    if live_segments(directory):
        raise ValueError(f"{directory} already holds groups")
    make_folder(directory / JOURNAL_FOLDER)
    write_checkpoint(directory, checkpoint)
    write_file(directory / JOURNAL_FOLDER / live_name(checkpoint.index + 1), bytes(_FIRST_SEGMENT_BYTES))
    sync_folder(directory / JOURNAL_FOLDER)


def local_chains(directory: Path, *, from_start: bool = False) -> dict[int, bytes]:
    """The hash at the checkpoint and after every later local group, by index.

    Raises CorruptJournal if groups are missing in between.
    """
    start = Checkpoint() if from_start else read_checkpoint(directory)
    if not live_segments(directory):
        return {0: b""}
    found = {start.index: start.chain}
    digest = start.chain
    for index, record in _records(directory, start.index):
        digest = extended(digest, record)
        found[index] = digest
    return found


def last_index(directory: Path) -> int:
    """Of the last whole local group."""
    segments = live_segments(directory)
    if not segments:
        return 0
    *_, (segment, result) = scans(tuple(segments[-1:]))
    return segment.first_index - 1 + len(result.records)


def _records(directory: Path, after_index: int) -> Iterator[tuple[int, bytes]]:
    wanted = chain(directory, after_index)
    for _, result in scans(wanted.segments):
        for record in result.records:
            if record.index > after_index:
                yield (
                    record.index,
                    encode_record(
                        schema=record.schema, epoch=record.epoch, index=record.index, payload=record.payload
                    ),
                )


def _line(checkpoint: Checkpoint) -> bytes:
    numbers = b"%020d %b" % (checkpoint.index, checkpoint.chain.hex().encode() or b"00")
    return b"%b %08x\n" % (numbers, zlib.crc32(numbers))
