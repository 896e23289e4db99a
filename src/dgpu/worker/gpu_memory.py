"""GPU memory of this process, through PyTorch when a function has loaded it. Nothing here imports PyTorch."""

from __future__ import annotations

import gc
import sys
from typing import Any

# Exceptions that mean "the GPU has no memory left", by name, since the libraries are not imported here.
_OUT_OF_MEMORY_TYPES = {"OutOfMemoryError", "ResourceExhaustedError"}
_OUT_OF_MEMORY_TEXTS = (
    "CUDA out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "RESOURCE_EXHAUSTED",
)
# After such an error no CUDA call of this process succeeds any more.
_BROKEN_TEXTS = (
    "device-side assert",
    "an illegal memory access",
    "unspecified launch failure",
    "uncorrectable ECC error",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
)


def is_out_of_memory(error: BaseException) -> bool:
    return any(
        type(one).__name__ in _OUT_OF_MEMORY_TYPES or any(text in str(one) for text in _OUT_OF_MEMORY_TEXTS)
        for one in _chain(error)
        if not isinstance(one, MemoryError)
    )


def is_broken_for_good(error: BaseException) -> bool:
    return any(
        "CUDA" in str(one) and any(text in str(one) for text in _BROKEN_TEXTS) for one in _chain(error)
    )


def allocated_mb() -> int:
    """Memory that PyTorch holds on all GPUs of this process; 0 without PyTorch."""
    cuda = _cuda()
    if cuda is None:
        return 0
    return int(sum(cuda.memory_allocated(index) for index in range(cuda.device_count()))) >> 20


def give_back() -> None:
    """Collects garbage and returns PyTorch's cached blocks to the driver."""
    gc.collect()
    cuda = _cuda()
    if cuda is not None:
        cuda.empty_cache()


def works() -> bool:
    """Whether this process can still allocate on its GPU. True without PyTorch."""
    cuda = _cuda()
    if cuda is None:
        return True
    try:
        sys.modules["torch"].empty(1, device="cuda")
        cuda.synchronize()
    except Exception:  # noqa: BLE001 - any failure here has the same answer
        return False
    return True


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return None
    return cuda


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found
