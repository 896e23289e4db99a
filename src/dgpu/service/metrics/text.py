"""The part of Prometheus' text format 0.0.4 that dgpu uses: families with a help line, labels, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from dgpu.service.metrics.meters import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]

PREFIX = "dgpu_"
# Families whose name says already where they come from, or that all programs have.
_KNOWN_NAMES = (PREFIX, "process_")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def escaped(value: str) -> str:
    return value.translate(_ESCAPES)


def labels(**pairs: str) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items()) + "}"


def head(name: str, kind: Kind, about: str) -> str:
    """Written once per family, before its samples, each of them on a new line."""
    return f"# HELP {name} {about}\n# TYPE {name} {kind}"


class Text:
    def __init__(self) -> None:
        self._plain: list[str] = []
        self._prefixed: list[str] = []

    def one(self, name: str, kind: Kind, about: str, value: float | None) -> None:
        """A family with one sample and no labels; None: no value now, but the family is declared."""
        self.family(name, kind, about, [] if value is None else [f"{name} {value}\n"])

    def by(self, label: str, name: str, kind: Kind, about: str, values: Mapping[str, float]) -> None:
        """One sample for each value of a label."""
        lines = [f"{name}{labels(**{label: key})} {value}\n" for key, value in values.items()]
        self.family(name, kind, about, lines)

    def histogram(self, name: str, about: str, known: Histogram) -> None:
        self.family(name, "histogram", about, _buckets(name, "", known))

    def histograms(self, label: str, name: str, about: str, known: Mapping[str, Histogram]) -> None:
        lines = [
            line for key, each in known.items() for line in _buckets(name, f'{label}="{escaped(key)}"', each)
        ]
        self.family(name, "histogram", about, lines)

    def family(self, name: str, kind: Kind, about: str, lines: Sequence[str]) -> None:
        """Written twice: by its own name, and with the prefix."""
        samples = "\n" + "".join(lines)
        self._plain += (head(name, kind, about), samples)
        if not name.startswith(_KNOWN_NAMES):
            # No label holds a line break (`escaped`), so the name after one begins a sample.
            prefixed = samples.replace(f"\n{name}", f"\n{PREFIX}{name}")
            self._prefixed += (head(PREFIX + name, kind, about), prefixed)

    def encode(self) -> bytes:
        """The families by their own names, then those that have it with the prefix."""
        # Model names come from drivers: text that is not UTF-8 must not fail the scrape.
        return "".join(self._plain + self._prefixed).encode("utf-8", "replace")


def _buckets(name: str, pair: str, known: Histogram) -> list[str]:
    before = f"{pair}," if pair else ""
    bounds = [f"{bound:g}" for bound in known.bounds] + ["+Inf"]
    after = f"{{{pair}}}" if pair else ""
    return [
        *(
            f'{name}_bucket{{{before}le="{bound}"}} {reached}\n'
            for bound, reached in zip(bounds, accumulate(known.counts), strict=True)
        ),
        f"{name}_sum{after} {known.total}\n{name}_count{after} {known.count}\n",
    ]
