"""Tokens that `dgpu login` stored: one for each scheduler, in a file of the user's configuration directory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_FILE = "credentials.json"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UnsafeCredentials(ValueError):  # noqa: N818  named for what they are
    """Other users can read the file, so its tokens may be known."""


def config_dir() -> Path:
    """The user's configuration directory. Raises RuntimeError if there is no home directory."""
    home = os.environ.get("XDG_CONFIG_HOME") or ""
    root = Path(home) if home.startswith("/") else Path.home() / ".config"
    return root / "dgpu"


def credentials_path() -> Path:
    return config_dir() / _FILE


def stored_token(url: str) -> str:
    """Empty: none for this scheduler. No other one may ever see it."""
    return _read().get(url, "")


def store_token(urls: Iterable[str], token: str) -> Path:
    return _write({**_read(), **dict.fromkeys(urls, token)})


def forget_tokens(urls: Iterable[str]) -> tuple[str, ...]:
    """The schedulers that had one."""
    known = _read()
    found = tuple(url for url in urls if url in known)
    if found:
        _write({url: token for url, token in known.items() if url not in found})
    return found


def _read() -> dict[str, str]:
    try:
        path = credentials_path()
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except (OSError, RuntimeError):  # none yet, or no home directory
        return {}
    if mode & _OTHERS:
        raise UnsafeCredentials(
            f"{path} has mode {stat.S_IMODE(mode):03o}, expected 600: other users may know its tokens. "
            f"Revoke them, then run: chmod 600 {path}"
        )
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    tokens = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(tokens, dict):
        return {}
    return {str(url): token for url, token in tokens.items() if isinstance(token, str)}


def _write(tokens: dict[str, str]) -> Path:
    """Complete or not at all, and never readable by others, also not for a moment."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"tokens": tokens}, file, indent=1)
        file.write("\n")
    new.replace(path)
    return path
