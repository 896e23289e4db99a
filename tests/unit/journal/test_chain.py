"""A gap in the files is found from their names, also behind an archived segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.journal.errors import CorruptJournal
from dgpu.journal.segments import ARCHIVE_FOLDER, JOURNAL_FOLDER, archived_name, chain, live_name


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """As after a snapshot was fetched from the engine: groups 11 to 20 were set aside."""
    for folder, name in ((ARCHIVE_FOLDER, archived_name(1, 10)), (JOURNAL_FOLDER, live_name(21))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    return tmp_path


@pytest.mark.parametrize(("after", "first"), [(0, 11), (5, 11), (10, 11), (15, 16), (19, 20)])
def test_groups_that_are_in_no_segment_are_named(directory: Path, after: int, first: int) -> None:
    with pytest.raises(CorruptJournal, match=f"groups {first} to 20 are in no segment"):
        chain(directory, after)


@pytest.mark.parametrize("after", [20, 25])
def test_a_state_after_the_gap_needs_no_earlier_group(directory: Path, after: int) -> None:
    assert [segment.first_index for segment in chain(directory, after).segments] == [21]
