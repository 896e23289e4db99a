"""The addresses of the schedulers, and the token for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from dgpu.client.credentials import Login, UnsafeCredentials, stored_login

DEFAULT_URL = "http://127.0.0.1:8080"


class BadToken(ValueError):  # noqa: N818  named for what it is
    """The token cannot be sent. The message does not repeat it: it may be half of a real one."""


class Server(NamedTuple):
    url: str
    token: str
    until_s: float = (
        0.0  # when the token must be renewed at the latest (see `renewal`); 0: it is not renewed here
    )

    def __repr__(self) -> str:
        return f"Server(url={self.url!r})"  # a token must not reach a log through repr


class _UpRecord(msgspec.Struct, frozen=True):
    url: str
    token_file: str = ""


def locate(servers: str | Iterable[str] | None = None, token: str | None = None) -> tuple[Server, ...]:
    """The argument, else DGPU_SERVER, else the record of `dgpu up`, else the default address. Several addresses are a
    list, or separated by commas. The token: the argument, else DGPU_TOKEN, else the one that `dgpu login` stored for
    the address, else the one of the recorded scheduler.

    Raises ValueError for a bad address, and its subclass BadToken for a bad token.
    """
    record = _read_record()
    return tuple(_server(url, token, record) for url in server_urls(servers))


def server_urls(servers: str | Iterable[str] | None = None) -> tuple[str, ...]:
    """Each address once, in the given order."""
    record = None if servers else _read_record()
    given = servers or os.environ.get("DGPU_SERVER") or (record.url if record else "") or DEFAULT_URL
    return checked_urls(given)


def checked_urls(given: str | Iterable[str]) -> tuple[str, ...]:
    """Raises ValueError if one of them is not an address, or if there is none."""
    texts = given.split(",") if isinstance(given, str) else given
    urls = tuple(dict.fromkeys(checked_url(text.strip()) for text in texts if text.strip()))
    if not urls:
        raise ValueError(f"{given!r} has no scheduler's address; expected something like {DEFAULT_URL}")
    return urls


def _server(url: str, token: str | None, record: _UpRecord | None) -> Server:
    login = Login(token or os.environ.get("DGPU_TOKEN") or "")
    if not login.token:
        try:
            login = stored_login(url)
        except UnsafeCredentials as error:
            raise BadToken(str(error)) from None
    # The recorded token is only for the recorded scheduler; no other server may see it.
    if not login.token and record and record.url.rstrip("/") == url:
        login = Login(_read_token(record.token_file))
    return Server(url, _checked_token(login.token), login.sign_in.until_s if login.sign_in else 0.0)


def recorded_url() -> str | None:
    """The current address of the scheduler that `dgpu up` started."""
    record = _read_record()
    return None if record is None else record.url.rstrip("/")


def state_dir() -> Path:
    chosen = os.environ.get("DGPU_DATA_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return root / "dgpu"


def _read_record() -> _UpRecord | None:
    try:
        return msgspec.json.decode((state_dir() / "up.json").read_bytes(), type=_UpRecord)
    except (OSError, RuntimeError, msgspec.MsgspecError):
        return None


def _read_token(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _checked_token(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise BadToken("the token contains a line break or another character that is not printable ASCII")
    return token


def _has_sane_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # not a number, or above 65535
        return False


def checked_url(url: str) -> str:
    """The address with its scheme. Raises ValueError if it is not an address."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_sane_port(parts):
        raise ValueError(f"{url!r} is not a scheduler's address; expected something like {DEFAULT_URL}")
    return url.rstrip("/")
