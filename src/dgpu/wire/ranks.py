"""Ranks of a gang on the wire. All ranks share the number of their attempt; a number that contains both identifies
their output. The rank is in the high bits, so for a task on one node the number is the attempt.
"""

from __future__ import annotations

_RANK_SHIFT = 20
_ATTEMPT_MASK = (1 << _RANK_SHIFT) - 1


def run_number(attempt: int, rank: int) -> int:
    return (rank << _RANK_SHIFT) + attempt


def attempt_of(number: int) -> int:
    return number & _ATTEMPT_MASK


def rank_of(number: int) -> int:
    return number >> _RANK_SHIFT
