"""Many simulated worlds: `python -m tests.sim.many --seeds 20000`. A failing seed replays with `--first SEED --seeds
1`.

`--loses state` or `--loses tail`: worlds that lose their state or the end of their journal. `--loses all`: each seed
plainly and with each loss. `--schedulers 2`: two schedulers on one engine. `--calls`: with function calls and workers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from dgpu.core_form import FORM
from dgpu.sim.simulate import Loss, simulate
from dgpu.sim.two.simulate import simulate_two

_MAX_FAILURES = 20
_LOSSES: dict[str, tuple[Loss, ...]] = {
    "none": ("",),
    "state": ("state",),
    "tail": ("tail",),
    "all": ("", "state", "tail"),
}


def one(world: tuple[int, Loss]) -> tuple[str, str, dict[str, int]]:
    """The world's name, what went wrong, and how often each fault struck."""
    seed, loses = world
    name = f"seed {seed}, loses {loses}" if loses else f"seed {seed}"
    try:
        summary = simulate(seed, loses=loses)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return name, f"{type(error).__name__}: {error}", {}
    return name, "", {"tasks": summary.tasks, "runs": summary.runs, **summary.faults}


def one_with_calls(world: tuple[int, Loss]) -> tuple[str, str, dict[str, int]]:
    """The same for a world with function calls and workers."""
    seed, _ = world
    try:
        summary = simulate(seed, has_calls=True)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return f"seed {seed}", f"{type(error).__name__}: {error}", {}
    return (
        f"seed {seed}",
        "",
        {"tasks": summary.tasks, "runs": summary.runs, "calls": summary.calls, **summary.faults},
    )


def one_of_two(world: tuple[int, Loss]) -> tuple[str, str, dict[str, int]]:
    """The same for a world with two schedulers."""
    seed, _ = world
    try:
        summary = simulate_two(seed)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return f"seed {seed}", f"{type(error).__name__}: {error}", {}
    counts = {name: getattr(summary, name) for name in ("tasks", "runs", "epochs", "groups", "applied_late")}
    return f"seed {seed}", "", {**counts, **summary.faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--loses", choices=_LOSSES, default="none")
    parser.add_argument("--schedulers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--calls", action="store_true")
    arguments = parser.parse_args()
    if arguments.schedulers == 2 and arguments.loses != "none":
        parser.error("--loses: only worlds with one scheduler lose state")
    if arguments.calls and (arguments.schedulers == 2 or arguments.loses != "none"):
        parser.error("--calls: only worlds with one scheduler and without a loss have calls")
    run = one if arguments.schedulers == 1 else one_of_two
    run = one_with_calls if arguments.calls else run
    seen: Counter[str] = Counter()
    failures = 0
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    worlds = [(seed, loses) for seed in seeds for loses in _LOSSES[arguments.loses]]
    print(
        f"{FORM} core, seeds {seeds.start} to {seeds.stop - 1}, loses {arguments.loses}, "
        f"schedulers {arguments.schedulers}",
        flush=True,
    )
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for done, (name, wrong, counts) in enumerate(pool.imap_unordered(run, worlds, chunksize=10), 1):
            seen.update(counts)
            if wrong:
                failures += 1
                print(f"{name}: {wrong}", flush=True)
            if failures >= _MAX_FAILURES:
                break
            if done % 1_000 == 0:
                print(f"{done} worlds, {failures} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(seen.items())))
    print(f"{len(worlds)} worlds, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
