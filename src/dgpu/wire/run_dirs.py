"""The name of a run's own directory. Standard library only: agents and the scheduler compute the same name."""

from __future__ import annotations

from dgpu.wire.ranks import attempt_of, rank_of

TMP_SUFFIX = ".tmp"  # of the private directory for temporary files of an isolated run


def run_dir_name(task_id: int, number: int) -> str:
    """`task-42.1` for the first attempt; `task-42.1.r3` for rank 3 of a gang. `number` is `ranks.run_number`."""
    rank = rank_of(number)
    return f"task-{task_id:d}.{attempt_of(number):d}" + (f".r{rank:d}" if rank else "")
