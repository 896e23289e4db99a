"""States of the past equal a replay up to their time, wherever the groups are by now."""

import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.archive import Retention, pack_covered, prune
from dgpu.journal.moments import TooEarly, moment_at
from dgpu.journal.segments import archived_segments, live_segments
from dgpu.journal.snapshot import write_snapshot
from unit.journal.samples import busy_cluster, write_journal

ALL = 10**9


@pytest.fixture
def cluster():
    return busy_cluster(steps=150)


@pytest.fixture
def directory(tmp_path, cluster):
    """Many segments, and a snapshot of every 30th group. The first half of what they cover was packed."""
    write_journal(tmp_path, cluster.groups, segment_bytes=1 << 12)
    for index in range(30, len(cluster.groups), 30):
        write_snapshot(tmp_path, replayed(cluster, index), index=index, epoch=1)
        pack_covered(tmp_path, min(index - 30, 150))
    assert len(archived_segments(tmp_path)) > 2
    assert len(live_segments(tmp_path)) > 1
    return tmp_path


def replayed(cluster, count: int) -> ClusterState:
    return replay(event for group in cluster.groups[:count] for event in group)


def begin_of(cluster, index: int) -> int:
    """Groups are counted from 1."""
    return cluster.groups[index - 1][0].at


def test_each_time_has_the_state_of_the_groups_before_it(directory, cluster) -> None:
    for index in range(1, len(cluster.groups) + 1, 7):
        at = begin_of(cluster, index)
        count = sum(group[0].at <= at for group in cluster.groups)
        found = moment_at(directory, at, upto_index=ALL)
        assert found.index == count
        assert digest(found.state, with_keys=False) == digest(replayed(cluster, count), with_keys=False)


def test_a_time_between_two_groups_is_that_of_the_first_one(directory, cluster) -> None:
    index = next(n for n in range(50, 90) if begin_of(cluster, n + 1) - begin_of(cluster, n) > 1)
    assert moment_at(directory, begin_of(cluster, index + 1) - 1, upto_index=ALL).index == index


def test_before_the_first_group_nothing_was_there(directory, cluster) -> None:
    found = moment_at(directory, begin_of(cluster, 1) - 1, upto_index=ALL)
    assert (found.index, found.state.tasks) == (0, {})


def test_groups_that_are_not_committed_are_not_read(directory, cluster) -> None:
    last = len(cluster.groups)
    for upto_index in (last - 1, 95, 61):
        assert moment_at(directory, begin_of(cluster, last), upto_index=upto_index).index == upto_index


def test_before_the_archive_begins_the_earliest_time_is_told(directory, cluster) -> None:
    prune(directory, Retention(max_bytes=0), now_ms=0)
    with pytest.raises(TooEarly) as refusal:
        moment_at(directory, begin_of(cluster, 20), upto_index=ALL)
    earliest_at = refusal.value.earliest_at
    assert begin_of(cluster, 20) < earliest_at
    found = moment_at(directory, earliest_at, upto_index=ALL)
    assert digest(found.state, with_keys=False) == digest(replayed(cluster, found.index), with_keys=False)
    with pytest.raises(TooEarly):
        moment_at(directory, earliest_at - 1, upto_index=ALL)
