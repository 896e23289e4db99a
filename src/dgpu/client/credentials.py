"""Tokens that `dgpu login` stored: one for each scheduler, in a file of the user's configuration directory.

A token of an identity provider ends soon. Beside it is a refresh token, if the provider gave one; see `renewal`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_FILE = "credentials.json"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UnsafeCredentials(ValueError):  # noqa: N818  named for what they are
    """Other users can read the file, so its tokens may be known."""


class SignIn(NamedTuple):
    """How a token of an identity provider is renewed."""

    token_url: str
    client_id: str
    refresh_token: str
    until_s: float  # when the token ends, by the clock of this machine

    def __repr__(self) -> str:
        return f"SignIn(token_url={self.token_url!r})"  # a token must not reach a log through repr


class Login(NamedTuple):
    """`token` is empty: none for this scheduler."""

    token: str
    sign_in: SignIn | None = None

    def __repr__(self) -> str:
        return f"Login(sign_in={self.sign_in!r})"  # the same


def config_dir() -> Path:
    """The user's configuration directory. Raises RuntimeError if there is no home directory."""
    home = os.environ.get("XDG_CONFIG_HOME") or ""
    root = Path(home) if home.startswith("/") else Path.home() / ".config"
    return root / "dgpu"


def credentials_path() -> Path:
    return config_dir() / _FILE


def stored_login(url: str) -> Login:
    """No other scheduler may ever see it."""
    return _read().get(url, Login(""))


def store_token(urls: Iterable[str], token: str, sign_in: SignIn | None = None) -> Path:
    with changing():
        return _write({**_read(), **dict.fromkeys(urls, Login(token, sign_in))})


def forget_tokens(urls: Iterable[str]) -> tuple[str, ...]:
    """The schedulers that had one."""
    with changing():
        known = _read()
        found = tuple(url for url in urls if url in known)
        if found:
            _write({url: login for url, login in known.items() if url not in found})
    return found


def replace_login(old: Login, new: Login) -> None:
    """For all schedulers that share it. Within `changing`."""
    _write({url: new if login == old else login for url, login in _read().items()})


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """One process at a time: a refresh token that is used twice ends the sign-in at many providers."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{_FILE}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read() -> dict[str, Login]:
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
    if not isinstance(found, dict) or not isinstance(found.get("tokens"), dict):
        return {}
    sign_ins = found.get("sign_ins")
    if not isinstance(sign_ins, dict):
        sign_ins = {}
    return {
        str(url): Login(token, _sign_in_of(sign_ins.get(url)))
        for url, token in found["tokens"].items()
        if isinstance(token, str)
    }


def _sign_in_of(found: Any) -> SignIn | None:
    try:
        sign_in = SignIn(**found)
    except TypeError:  # none, or of another version
        return None
    is_whole = all(isinstance(text, str) for text in sign_in[:-1]) and isinstance(
        sign_in.until_s, int | float
    )
    return sign_in if is_whole else None


def _write(logins: dict[str, Login]) -> Path:
    """Complete or not at all, and never readable by others, also not for a moment."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    content: dict[str, Any] = {"tokens": {url: login.token for url, login in logins.items()}}
    if signed_in := {url: login.sign_in._asdict() for url, login in logins.items() if login.sign_in}:
        content["sign_ins"] = signed_in
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    new.replace(path)
    return path
