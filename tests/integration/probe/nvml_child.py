"""Runs a probe in a process whose LD_LIBRARY_PATH holds the NVML of the test. One JSON line in, one out."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from dgpu.agent.probe.detect import DetectionMethod, detect
from dgpu.agent.probe.nvml import NvmlProbe
from dgpu.agent.probe.probe import ProbeError


def answer(probe: NvmlProbe | None, verb: str, argument: Any) -> Any:
    if verb == "detect":
        detection = detect(DetectionMethod(argument))
        return {"method": detection.method, "gpus": detection.gpus, "attempts": detection.attempts}
    assert probe is not None
    if verb == "list":
        return probe.list_gpus()
    if verb == "sample":
        return probe.sample({gpu_id: frozenset(pids) for gpu_id, pids in argument.items()})
    if verb == "examine":
        return probe.examine(argument)
    if verb == "program_xid":
        return probe.program_xid(argument)
    return sorted(probe.holders(argument))


def main() -> None:
    probe: NvmlProbe | None = None
    for line in sys.stdin:
        verb, argument = json.loads(line)
        try:
            if verb == "open":
                probe = NvmlProbe()
                reply: Any = {"ok": None}
            else:
                reply = {"ok": answer(probe, verb, argument)}
        except ProbeError as error:
            reply = {"error": str(error), "kind": type(error).__name__}
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
