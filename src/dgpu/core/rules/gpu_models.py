"""Which models of GPUs a task accepts: `a100` means an NVIDIA A100-SXM4-80GB, and never an A10."""

from __future__ import annotations

import functools
import re
from typing import Final

_MAX_REMEMBERED: Final = 4_096  # pairs of a request and a model; a cluster has few models
_WORD: Final = re.compile(r"[^\W_]+")


@functools.lru_cache(maxsize=_MAX_REMEMBERED)
def suits_model(asked: tuple[str, ...], model: str) -> bool:
    """Whether a GPU of this model is one of the alternatives. Each word of an alternative must be a word of the model,
    or several in a row: `rtx3090` means an RTX 3090. Case does not matter.
    """
    if model in asked:
        return True
    words = _words(model)
    found = {
        "".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)
    }
    return any(bool(named := _words(each)) and found.issuperset(named) for each in asked)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
