from __future__ import annotations

import subprocess
import sys

HEAVY = {"httpx", "yaml", "typer", "rich", "grpc", "http.client", "asyncio", "dgpu.client", "dgpu.wire"}


def imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_worker_and_the_decorators_import_nothing_heavy() -> None:
    """A worker is ready sooner, and a function's own versions of packages are not shadowed by ours."""
    assert imported_by("import dgpu.worker.main") & HEAVY == set()
    assert imported_by("import dgpu; dgpu.model, dgpu.task, dgpu.progress, dgpu.cancelled") & HEAVY == set()


def test_the_names_of_the_sdk_are_all_there() -> None:
    import dgpu

    assert {"task", "model", "connect", "Client", "AsyncClient", "progress", "cancelled"} <= set(dir(dgpu))
    assert all(getattr(dgpu, name) is not None for name in dir(dgpu) if not name.startswith("__"))
