"""The figures of a takeover are those that clients see."""

from __future__ import annotations

import pytest

from dgpu.entry.chaos.history import Step, Submit
from dgpu.entry.chaos.report import Round, round_line, times_of
from dgpu.entry.chaos.takeovers import Takeover, longest_gap, not_taken_over, percentile, takeover


def submit(number, acknowledged, by) -> Submit:
    return Submit(
        key=f"k{number}", sent_s=acknowledged - 0.1, acknowledged_s=acknowledged, by=by, number=number
    )


def begin(number, at_s) -> Step:
    return Step(at_s=at_s, begins=True, number=number, attempt=1, node="n1")


def test_the_time_runs_from_the_last_acknowledgement_of_the_old_to_the_first_of_the_new() -> None:
    submits = [submit(1, 9.0, "a"), submit(2, 10.0, "a"), submit(4, 16.0, "b"), submit(3, 15.5, "b")]
    steps = [begin(2, 10.5), begin(4, 16.5), begin(3, 17.0)]
    found = takeover(submits, steps, "a", 10.2)
    assert found is not None
    assert (found.old, found.new, found.gap_s) == ("a", "b", 5.5)
    assert found.first_run_s == pytest.approx(6.3)  # not the task that the old master had accepted


def test_without_another_master_there_was_no_takeover() -> None:
    found = takeover([submit(1, 9.0, "a"), submit(2, 12.0, "a")], [], "a", 10.0)
    assert found is None
    assert not_taken_over(found, "a", 60.0) == [
        "not taken over: no other scheduler acknowledged a submit within 60 s after a was lost"
    ]
    assert not not_taken_over(Takeover(old="a", new="b", gap_s=5.5), "a", 60.0)


def test_an_earlier_master_is_not_a_new_one() -> None:
    """Once b led before a. The fault at 10 s changed nothing."""
    assert takeover([submit(1, 5.0, "b"), submit(2, 12.0, "a")], [], "a", 10.0) is None


def test_the_longest_gap_includes_both_ends() -> None:
    submits = [submit(1, 3.0, "a"), submit(2, 4.0, "a")]
    assert longest_gap(submits, 1.0, 9.0) == 5.0
    assert longest_gap([], 1.0, 9.0) == 8.0


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)
    assert percentile([7.0], 0.99) == 7.0
    assert times_of([("x", 2.0), ("x", None), ("x", 1.0)])["x"].max_s == 2.0


def test_a_line_names_fault_target_and_time() -> None:
    done = Round(
        fault="kill-master",
        target="a",
        struck_s=61.25,
        undone_s=67,
        settled_s=71.25,
        submits=1500,
        failed_calls=2,
        longest_gap_s=5.5,
        takeover=Takeover(old="a", new="b", gap_s=5.5),
        wrong=("lost: 1",),
    )
    assert round_line(done) == (
        " 1:01.2  kill-master          a     b took over after 5.50 s, healthy after 10.0 s, 1500 submits, "
        "2 calls repeated, WRONG: lost: 1"
    )
