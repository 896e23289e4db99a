"""How long clients and nodes noticed a fault. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec

from dgpu.entry.chaos.history import Step, Submit


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    old: str
    new: str
    gap_s: float  # last acknowledged submit on the old → first on the new master
    first_run_s: float | None = None  # fault → first begin of a task that the new master acknowledged


def takeover(submits: Iterable[Submit], steps: Iterable[Step], old: str, at_s: float) -> Takeover | None:
    """None: no other scheduler acknowledged anything after the fault."""
    ordered = sorted(submits, key=lambda submit: submit.acknowledged_s)
    first = next((each for each in ordered if each.by != old and each.acknowledged_s > at_s), None)
    if first is None:
        return None
    before = [each for each in ordered if each.by == old and each.acknowledged_s < first.acknowledged_s]
    began_s = before[-1].acknowledged_s if before else at_s
    by_new = {each.number for each in ordered if each.by == first.by and each.sent_s > at_s}
    begins = (step.at_s for step in steps if step.begins and step.at_s > at_s and step.number in by_new)
    run_s = min(begins, default=None)
    return Takeover(
        old=old,
        new=first.by,
        gap_s=first.acknowledged_s - began_s,
        first_run_s=None if run_s is None else run_s - at_s,
    )


def not_taken_over(found: Takeover | None, old: str, waited_s: float) -> list[str]:
    """A standby that was ready and did not lead is a failure, even if the old master came back and lost nothing."""
    if found is not None:
        return []
    return [
        f"not taken over: no other scheduler acknowledged a submit within {waited_s:.0f} s after {old} was lost"
    ]


def longest_gap(submits: Iterable[Submit], from_s: float, to_s: float) -> float:
    """The longest time without any acknowledged submit in this part of the run."""
    inside = (each.acknowledged_s for each in submits if from_s < each.acknowledged_s < to_s)
    times = [from_s, *sorted(inside), to_s]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
