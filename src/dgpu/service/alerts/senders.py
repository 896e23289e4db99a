"""One attempt to send a message. A failure is a `SendFailed` whose text contains no secret."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dgpu.service.alerts.bodies import Letter, letter_of
from dgpu.service.alerts.public_hosts import NotPublic, public_address
from dgpu.service.alerts.targets import Target
from dgpu.service.alerts.values import Message

if TYPE_CHECKING:
    import httpx

NEEDS_APPRISE = "needs the package apprise, which is not installed: pip install 'dgpu[notify]'"
_MAX_RECORDS = 50
_MAX_CAUSES = 10
_USER_AGENT = "dgpu-alerts"

# Set before its first log line, which may contain addresses and passwords.
logging.getLogger("apprise").propagate = False


class SendFailed(Exception):  # noqa: N818 - the name states the failure
    """The text is safe for logs and responses."""


class Senders:
    """Webhooks use HTTP; all other targets use apprise, each attempt in a thread that never outlives the process."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._http: httpx.AsyncClient | None = None

    async def send(self, target: Target, message: Message, message_id: str) -> str:
        """Returns the answer of the target."""
        return await self.send_letter(target, letter_of(message), message_id)

    async def send_letter(self, target: Target, letter: Letter, message_id: str) -> str:
        if target.kind == "webhook":
            return await self._post(target, letter, message_id)
        return await _in_thread(lambda: send_by_apprise(target, letter))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _post(self, target: Target, letter: Letter, message_id: str) -> str:
        import httpx

        body = letter.body
        headers = {
            "content-type": "application/json",
            "user-agent": _USER_AGENT,
            "x-dgpu-event": letter.event,
            "x-dgpu-delivery": message_id,
        }
        if target.secret:
            headers["x-dgpu-signature"] = signature(target.secret, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                request = self._client().build_request("POST", target.url, content=body, headers=headers)
                if target.public_only:
                    await _pin(request)
                # Only the status counts: the body of the response is not read.
                answer = await self._client().send(request, stream=True)
                status = answer.status_code
                await answer.aclose()
        except TimeoutError:
            raise SendFailed(f"no answer within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise SendFailed(target.without_secrets(_words(error))) from None
        if 200 <= status < 300:
            return f"answered {status}"
        if 300 <= status < 400:
            raise SendFailed(f"answered {status}, a redirect; redirects are not followed, set the final URL")
        raise SendFailed(f"answered {status}")

    def _client(self) -> httpx.AsyncClient:
        import httpx

        if self._http is None:
            # No proxy and no password from the environment: only the configuration decides where a message goes.
            self._http = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                timeout=self._timeout_s,
                limits=httpx.Limits(max_connections=20),
            )
        return self._http


async def _pin(request: httpx.Request) -> None:
    """Connects to the address that was checked: a second look-up could find another one."""
    try:
        address = await public_address(str(request.url))
    except NotPublic as error:
        raise SendFailed(str(error)) from None
    request.extensions["sni_hostname"] = request.url.host  # certificates are checked against the name
    request.url = request.url.copy_with(host=address)  # the header Host keeps the name


def signature(secret: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def apprise_refusal(url: str) -> str | None:
    """Why apprise cannot send to this address. The reason does not repeat the address."""
    try:
        import apprise
    except ImportError:
        return NEEDS_APPRISE
    with _heard() as records:
        if apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None:
            return None
    said = Target(name="", kind="apprise", url=url).without_secrets(_complaint(records))
    return f"expected a URL of apprise, like mailto://user:password@host?to=ops@example.org ({said})"


def send_by_apprise(target: Target, letter: Letter) -> str:
    try:
        import apprise
    except ImportError:
        raise SendFailed(NEEDS_APPRISE) from None
    with _heard() as records:
        try:
            service = apprise.Apprise.instantiate(target.url, suppress_exceptions=True)
            sent = service is not None and service.notify(
                body=letter.text, title=letter.title, notify_type=letter.kind
            )
        except Exception as error:  # noqa: BLE001 - about ninety plugins may raise anything
            raise SendFailed(target.without_secrets(_words(error))) from None
    if not sent:
        raise SendFailed(target.without_secrets(_complaint(records)))
    return "sent"


def _complaint(records: list[logging.LogRecord]) -> str:
    """Apprise returns only success or failure; the reason is in its log."""
    said = [
        record.getMessage()
        for record in records
        if record.levelno >= logging.WARNING or "xception" in record.getMessage()[:40]
    ]
    return " ".join(dict.fromkeys(said)) or "apprise gives no reason"


class _Listening(logging.Handler):
    """Captures the apprise log of one thread. It goes nowhere else, because it may contain addresses and passwords."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and len(self.records) < _MAX_RECORDS:
            self.records.append(record)


@contextmanager
def _heard() -> Iterator[list[logging.LogRecord]]:
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.DEBUG)
    listening = _Listening()
    logger.addHandler(listening)
    try:
        yield listening.records
    finally:
        logger.removeHandler(listening)


async def _in_thread(work: Callable[[], str]) -> str:
    """Uses a daemon thread: a hanging mail server must not keep the scheduler from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def run() -> None:
        try:
            result, error = work(), None
        except BaseException as failed:  # noqa: BLE001 - the waiting caller gets it
            result, error = "", failed
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="alert-sender", daemon=True).start()
    return await future


def _words(error: BaseException) -> str:
    """Libraries wrap the error of the system, which is more useful."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if isinstance(cause, OSError) and cause.strerror:
            number = cause.errno or 0  # below 0: of the resolver, which has its own texts
            return f"cannot be reached: {os.strerror(number) if number > 0 else cause.strerror}"
        cause = None if cause is None else cause.__cause__ or cause.__context__
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
