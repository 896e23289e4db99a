"""The part of Prometheus' text format 0.0.4 that dgpu uses: families with a help line, labels, histograms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Literal

from dgpu.service.metrics.meters import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]

PREFIX = "dgpu_"
_NAMES = re.compile(r"^(# (?:HELP|TYPE) )?(?=[a-z])", re.MULTILINE)
# Families whose name says already where they come from, or that all programs have.
_KNOWN_NAMES = re.compile(r"^(?:# (?:HELP|TYPE) )?(?:dgpu|process)_.*\n", re.MULTILINE)
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def escaped(value: str) -> str:
    return value.translate(_ESCAPES)


def labels(**pairs: str) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items()) + "}"


def head(name: str, kind: Kind, about: str) -> str:
    """Written once per family, before its samples."""
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


class Text:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def one(self, name: str, kind: Kind, about: str, value: float | None) -> None:
        """A family with one sample and no labels; None: no value now, but the family is declared."""
        self._parts.append(head(name, kind, about))
        if value is not None:
            self._parts.append(f"{name} {value}\n")

    def by(self, label: str, name: str, kind: Kind, about: str, values: Mapping[str, float]) -> None:
        """One sample for each value of a label."""
        self._parts.append(head(name, kind, about))
        self._parts += [f"{name}{labels(**{label: key})} {value}\n" for key, value in values.items()]

    def histogram(self, name: str, about: str, known: Histogram) -> None:
        self._parts.append(head(name, "histogram", about))
        self._buckets(name, "", known)

    def histograms(self, label: str, name: str, about: str, known: Mapping[str, Histogram]) -> None:
        self._parts.append(head(name, "histogram", about))
        for key, each in known.items():
            self._buckets(name, f'{label}="{escaped(key)}"', each)

    def add(self, lines: Iterable[str]) -> None:
        self._parts += lines

    def encode(self) -> bytes:
        """Each family twice: by its own name and, after all of these, by the same name with the prefix."""
        plain = "".join(self._parts)
        prefixed = _NAMES.sub(rf"\1{PREFIX}", _KNOWN_NAMES.sub("", plain))
        # Model names come from drivers: text that is not UTF-8 must not fail the scrape.
        return (plain + prefixed).encode("utf-8", "replace")

    def _buckets(self, name: str, pair: str, known: Histogram) -> None:
        before = f"{pair}," if pair else ""
        bounds = [f"{bound:g}" for bound in known.bounds] + ["+Inf"]
        self._parts += [
            f'{name}_bucket{{{before}le="{bound}"}} {reached}\n'
            for bound, reached in zip(bounds, accumulate(known.counts), strict=True)
        ]
        after = f"{{{pair}}}" if pair else ""
        self._parts.append(f"{name}_sum{after} {known.total}\n{name}_count{after} {known.count}\n")
