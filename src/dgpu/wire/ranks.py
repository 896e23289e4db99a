"""Ranks of a gang on the wire. All ranks share the number of their attempt; a number that contains both identifies
their output. The rank is in the high bits, so for a task on one node the number is the attempt.
"""

from __future__ import annotations

# Variables with options of torchrun. A value that the task brings itself takes precedence.
LAUNCHER_PREFIX = "PET_"
# The list of a gang's nodes, for launchers such as mpirun and deepspeed. It travels with the files of secrets: each run
# gets these in a private directory. No secret can have this name.
HOST_FILE = ".hostfile"

_RANK_SHIFT = 20
_ATTEMPT_MASK = (1 << _RANK_SHIFT) - 1


def run_number(attempt: int, rank: int) -> int:
    return (rank << _RANK_SHIFT) + attempt


def attempt_of(number: int) -> int:
    return number & _ATTEMPT_MASK


def rank_of(number: int) -> int:
    return number >> _RANK_SHIFT
