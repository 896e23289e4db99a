"""The connection that functions are submitted over: of `dgpu.connect`, or made at the first submit."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dgpu.wire.address import is_loopback
from dgpu.worker.context import current

if TYPE_CHECKING:
    from dgpu.client.asynchronous import AsyncClient
    from dgpu.client.sync import Client

# Several addresses: a silent one is left after 5 s, so a question must be answered sooner.
_WAIT_SECONDS = 20.0
_WAIT_SECONDS_OF_SEVERAL = 3.0


class Session:
    """One scheduler (or its addresses), a token, and default options of functions."""

    def __init__(
        self, server: str | Iterable[str] | None = None, *, token: str | None = None, **options: Any
    ) -> None:
        from dgpu.client.sync import Client

        self._server = server
        self._token = token
        self.options = options
        # Functions describe their surroundings themselves, once and not per call.
        self.client: Client = Client(server, token=token, clean_env=True)
        self.tasks: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def is_same_host(self) -> bool:
        return all(is_loopback(urlsplit(url).hostname or "") for url in self.client.urls)

    @property
    def wait_seconds(self) -> float:
        return _WAIT_SECONDS if len(self.client.urls) == 1 else _WAIT_SECONDS_OF_SEVERAL

    @property
    def async_client(self) -> AsyncClient:
        """Of the running event loop: its connections belong to it."""
        from dgpu.client.asynchronous import AsyncClient

        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            found = self._loops[loop] = AsyncClient(self._server, token=self._token, clean_env=True)
        return found


_lock = threading.Lock()
_default: Session | None = None


def connect(
    server: str | Iterable[str] | None = None, *, token: str | None = None, **options: Any
) -> Session:
    """Chooses the scheduler for all functions of this process. Without it, the one that `dgpu` commands use.

    `options` are defaults of all functions: `dgpu.connect("https://gpu:8080", tenant="team-a", upload=".")`.
    """
    from dgpu.functions.options import checked

    global _default  # noqa: PLW0603 - one connection per process, as documented
    session = Session(server, token=token, **checked(options))
    with _lock:
        _default = session
    return session


def default_session() -> Session:
    if current.is_importing:
        raise RuntimeError(
            "a function was submitted while a worker imports this module; "
            'put it under `if __name__ == "__main__":` or into a function'
        )
    with _lock:
        found = _default
    return connect() if found is None else found
