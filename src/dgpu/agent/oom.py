"""Finds an out-of-memory error at the end of a task's output."""

from __future__ import annotations

import re

TAIL_BYTES = 16_384
MARK = "DGPU_OUT_OF_MEMORY"  # programs that catch the error print this and exit with a code other than 0
_MAX_LINES = 40
_MAX_CHARS = 300

# PyTorch, CuPy and plain CUDA, the driver's API, JAX and TensorFlow, ONNX Runtime.
_SAYS_SO = re.compile(
    rf"{MARK}"
    r"|cuda(?: error)?:? out of memory"
    r"|cuda\.OutOfMemoryError|OutOfMemoryError: CUDA"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|cudaMalloc failed: out of memory|cuMemAlloc failed: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)|ResourceExhaustedError: OOM"
    r"|BFCArena.*Failed to allocate memory",
    re.IGNORECASE,
)


def out_of_memory(tail: bytes) -> str:
    """The line with the error, or an empty text."""
    lines = tail.decode(errors="replace").splitlines()[-_MAX_LINES:]
    for line in reversed(lines):
        if _SAYS_SO.search(line):
            return " ".join(line.split())[:_MAX_CHARS]
    return ""
