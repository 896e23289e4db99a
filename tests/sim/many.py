"""Many simulated worlds: `python -m tests.sim.many --seeds 20000`. A failing seed replays with `--first SEED --seeds 1`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from dgpu.core_form import FORM
from dgpu.sim.simulate import simulate

_MAX_FAILURES = 20


def one(seed: int) -> tuple[int, str, dict[str, int]]:
    """The seed, what went wrong, and how often each fault struck."""
    try:
        summary = simulate(seed)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return seed, f"{type(error).__name__}: {error}", {}
    return seed, "", {"tasks": summary.tasks, "runs": summary.runs, **summary.faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    seen: Counter[str] = Counter()
    failures = 0
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    print(f"{FORM} core, seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for done, (seed, wrong, counts) in enumerate(pool.imap_unordered(one, seeds, chunksize=10), 1):
            seen.update(counts)
            if wrong:
                failures += 1
                print(f"seed {seed}: {wrong}", flush=True)
            if failures >= _MAX_FAILURES:
                break
            if done % 1_000 == 0:
                print(f"{done} seeds, {failures} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(seen.items())))
    print(f"{arguments.seeds} seeds, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
