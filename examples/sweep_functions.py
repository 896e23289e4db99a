"""Trains a small model for each learning rate and prints the results as they come, best last.

python examples/sweep_functions.py --rates 0.001 0.01 0.1 1.0
"""

from __future__ import annotations

import argparse
import math
import random

import dgpu

STEPS = 200


@dgpu.task(timeout=300, max_workers=4)
def train(rate: float) -> dict[str, float]:
    """Logistic regression on points that a line separates: any program of yours goes here."""
    chosen = random.Random(0)  # noqa: S311 - the same points for each rate
    points = [(chosen.uniform(-1, 1), chosen.uniform(-1, 1)) for _ in range(200)]
    a = b = 0.0
    for step in range(STEPS):
        if dgpu.cancelled():
            raise dgpu.Cancelled
        if step % 50 == 0:
            dgpu.progress(step / STEPS, f"step {step}")
        for x, y in points:
            error = 1 / (1 + math.exp(-(a * x + b * y))) - (x + y > 0)
            a, b = a - rate * error * x, b - rate * error * y
    right = sum((a * x + b * y > 0) == (x + y > 0) for x, y in points)
    return {"rate": rate, "accuracy": right / len(points)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[0.001, 0.01, 0.1, 1.0])
    parser.add_argument("--api", help="the scheduler; without it the one that `dgpu up` started")
    options = parser.parse_args()
    dgpu.connect(options.api)
    results = []
    for result in train.map(options.rates, ordered=False):
        print(f"rate {result['rate']:g}: {result['accuracy']:.1%}")
        results.append(result)
    best = max(results, key=lambda each: each["accuracy"])
    print(f"best rate: {best['rate']:g}")


if __name__ == "__main__":
    main()
