"""The packages of services. `pip install dgpu` installs only those of the command line and the SDK."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from dgpu.cli.failures import CliFailure

# For each extra of the distribution: names to import, and the packages that have them. A test compares it with
# pyproject.toml.
_BOTH = {
    "cryptography": "cryptography",
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "structlog": "structlog",
    "uvloop": "uvloop",
}
PACKAGES = {
    "server": _BOTH
    | {"httptools": "httptools", "joserfc": "joserfc", "litestar": "litestar", "uvicorn": "uvicorn"},
    "agent": _BOTH | {"pynvml": "nvidia-ml-py"},
}


def require(verb: str, extras: Iterable[str]) -> None:
    """Raises CliFailure with the names of the missing packages, before the verb does anything."""
    wanted = tuple(extras)
    needed: dict[str, str] = {}
    for extra in wanted:
        needed |= PACKAGES[extra]
    missing = sorted(package for module, package in needed.items() if not _is_there(module))
    if not missing:
        return
    raise CliFailure(
        f"{verb} needs packages that are not installed: {', '.join(missing)}\n"
        f"Install them: pip install 'dgpu[{','.join(wanted)}]'"
    )


def missing_package(error: ModuleNotFoundError) -> CliFailure | None:
    """None: the module belongs to no extra, so its absence is an error of dgpu."""
    top = (error.name or "").partition(".")[0]
    for extra, modules in PACKAGES.items():
        for module, package in modules.items():
            if top == module.partition(".")[0]:
                return CliFailure(
                    f"The package {package} is not installed\nInstall it: pip install 'dgpu[{extra}]'"
                )
    return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False
