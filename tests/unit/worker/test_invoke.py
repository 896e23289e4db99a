from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.worker.context import RunningCall
from dgpu.worker.frames import MAX_INLINE_BYTES, Call
from dgpu.worker.invoke import Invoker
from dgpu.worker.models import ModelCache
from dgpu.worker.results import Files, encode_value


def test_a_large_result_that_comes_too_late_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never sent, so no agent would delete it while the worker lives."""
    for name in ("DGPU_TASK_ID", "DGPU_ATTEMPT"):
        monkeypatch.setenv(name, "")
    invoker = Invoker(models=ModelCache(max_models=1, ttl_seconds=60), files=Files(tmp_path))
    call = Call(lease=1, entrypoint="builtins:bytes", args=encode_value([[MAX_INLINE_BYTES + 1], {}]))
    running = RunningCall(call, lambda: None)
    assert invoker.run(call, running).result_file == "result-1"
    assert [each.name for each in tmp_path.iterdir()] == ["result-1"]
    running.stop = "timeout"
    late = invoker.run(call, running)
    assert (late.outcome, late.result_file) == ("timeout", "")
    assert list(tmp_path.iterdir()) == []
