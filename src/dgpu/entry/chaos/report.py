"""The words of a run: one line for each fault, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from dgpu.entry.chaos.takeovers import Takeover, percentile

_MAX_WRONG = 20  # findings that are printed


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, from its strike until everything was healthy again."""

    fault: str
    target: str
    struck_s: float
    undone_s: float
    settled_s: float
    submits: int  # acknowledged since the round before, and checked
    failed_calls: int
    longest_gap_s: float  # without an acknowledged submit
    takeover: Takeover | None = None
    wrong: tuple[str, ...] = ()


class Times(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    p50_s: float
    p99_s: float
    max_s: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float
    interrupted: bool
    submits: int  # acknowledged
    runs: int  # processes of tasks that began
    failed_calls: int
    epochs: int
    faults: dict[str, int]
    takeovers: dict[str, Times]  # last acknowledged submit on the old → first on the new master
    first_runs: dict[str, Times]  # fault → first task on an existing node
    gaps: dict[str, Times]  # longest time without an acknowledged submit, where the master stayed
    wrong: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.wrong


def times_of(pairs: Iterable[tuple[str, float | None]]) -> dict[str, Times]:
    values: dict[str, list[float]] = {}
    for name, value in pairs:
        if value is not None:
            values.setdefault(name, []).append(value)
    return {
        name: Times(
            count=len(each),
            p50_s=round(percentile(each, 0.5), 3),
            p99_s=round(percentile(each, 0.99), 3),
            max_s=round(max(each), 3),
        )
        for name, each in sorted(values.items())
    }


def fault_counts(rounds: Iterable[Round]) -> dict[str, int]:
    return dict(sorted(Counter(each.fault for each in rounds).items()))


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def round_line(each: Round) -> str:
    begin = f"{clock(each.struck_s):>7}  {each.fault:<20} {each.target:<5} "
    if each.takeover is not None:
        parts = [f"{begin}{each.takeover.new} took over after {each.takeover.gap_s:.2f} s"]
    else:
        parts = [f"{begin}longest wait {each.longest_gap_s:.2f} s"]
    parts.append(f"healthy after {each.settled_s - each.struck_s:.1f} s")
    parts.append(f"{each.submits} submits")
    if each.failed_calls:
        parts.append(f"{each.failed_calls} calls repeated")
    if each.wrong:
        parts.append(f"WRONG: {each.wrong[0]}")
    return ", ".join(parts)


def verdict_lines(verdict: Verdict) -> Sequence[str]:
    faults = ", ".join(f"{count} {name}" for name, count in verdict.faults.items()) or "none"
    lines = [
        "",
        (
            f"History: {verdict.submits} acknowledged submits, {verdict.runs} runs of tasks, {verdict.epochs} epochs, "
            f"{verdict.failed_calls} failed calls that were repeated, in {verdict.seconds:.0f} s."
        ),
        f"Faults: {faults}.",
    ]
    tables = (
        ("Takeover, last acknowledged submit on the old to the first on the new master:", verdict.takeovers),
        ("First new task on a node, after the fault:", verdict.first_runs),
        ("Longest wait for an acknowledged submit, where the master stayed:", verdict.gaps),
    )
    for title, rows in tables:
        if rows:
            lines += [title, *(_times_line(name, times) for name, times in rows.items())]
    lines.append(
        "Checked: every acknowledged task is known to both schedulers, ids in the order of time, no task ran twice, "
        "none failed or was requeued, epochs only grow, both schedulers show the same."
    )
    lines += [f"WRONG: {each}" for each in verdict.wrong[:_MAX_WRONG]]
    if len(verdict.wrong) > _MAX_WRONG:
        lines.append(f"… and {len(verdict.wrong) - _MAX_WRONG} more.")
    so_far = " so far (interrupted)" if verdict.interrupted else ""
    lines.append(f"Verdict{so_far}: {'good' if verdict.is_good else 'BROKEN'}. Seed {verdict.seed}.")
    return lines


def _times_line(name: str, times: Times) -> str:
    return (
        f"  {name:<20} {times.count:>4} times, p50 {times.p50_s:.2f} s, p99 {times.p99_s:.2f} s, "
        f"max {times.max_s:.2f} s"
    )
