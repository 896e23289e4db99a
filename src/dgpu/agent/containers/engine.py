"""A client of the container engine: the Docker API over its Unix socket. Standard library only.

Docker and Podman both offer this API. One connection per call: calls are rare, and a broken one harms no other.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

API = "/v1.41"
CALL_SECONDS = 60.0
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_MESSAGE_CHARACTERS = 500
_MAX_MESSAGE_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 16 * 1024


class EngineError(Exception):
    """The engine refused. The message is one line for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineDown(EngineError):  # noqa: N818 - a state of the engine
    """It does not answer: not running, no permission, or silent for too long."""

    def __init__(self, path: str, error: Exception) -> None:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
        super().__init__(0, f"the container engine at {path} does not answer: {why}")


class Engine:
    def __init__(self, path: str) -> None:
        self._path = path

    def ping(self, *, seconds: float = CALL_SECONDS) -> str:
        """Its name and version. Raises EngineError."""
        answer = self.call("GET", "/version", seconds=seconds)
        if not isinstance(answer, dict) or "Version" not in answer:
            raise EngineError(0, f"{self._path} is no container engine")
        name = next((str(part.get("Name")) for part in answer.get("Components") or ()), "container engine")
        return one_line(f"{name} {answer['Version']}")

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        seconds: float | None = CALL_SECONDS,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        """The decoded answer. Raises EngineError, EngineDown."""
        try:
            with self.stream(method, path, body=body, seconds=seconds, query=query) as response:
                answer = response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise EngineDown(self._path, error) from error
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError:
            return None

    def stream(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        seconds: float | None = CALL_SECONDS,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> http.client.HTTPResponse:
        """An answer whose body the caller reads. Raises EngineError, EngineDown."""
        target = API + path + ("?" + urlencode(query) if query else "")
        sent = {"Content-Type": "application/json", **headers}
        encoded = None if body is None else json.dumps(body).encode()
        link = _UnixConnection(self._path, seconds)
        try:
            link.request(method, target, encoded, sent)
            response = link.getresponse()
            if response.status >= 400:
                raise EngineError(response.status, _message(response.read(_MAX_ANSWER_BYTES)))
        except (OSError, http.client.HTTPException) as error:
            raise EngineDown(self._path, error) from error
        return response

    def hijack(
        self, path: str, *, body: Any = None, query: Mapping[str, str] = MappingProxyType({})
    ) -> socket.socket:
        """A connection that carries only the streams of a program from now on. Raises EngineError, EngineDown."""
        target = API + path + ("?" + urlencode(query) if query else "")
        encoded = b"" if body is None else json.dumps(body).encode()
        head = (
            f"POST {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n"
        )
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(CALL_SECONDS)
            link.connect(self._path)
            link.sendall(head.encode() + encoded)
            status = _read_head(link)
            refusal = _message(link.recv(_MAX_MESSAGE_BYTES)) if status >= 400 else ""
        except OSError as error:
            link.close()
            raise EngineDown(self._path, error) from error
        if status >= 400:
            link.close()
            raise EngineError(status, refusal)
        link.settimeout(None)
        return link

    # -- containers

    def create(self, name: str, body: dict[str, Any]) -> str:
        """The id of the new container."""
        answer = self.call("POST", "/containers/create", body=body, query={"name": name})
        return str(answer["Id"])

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/containers/{quote(name)}/json")
        return found

    def signal(self, name: str, number: str) -> None:
        self.call("POST", f"/containers/{quote(name)}/kill", query={"signal": number})

    def remove(self, name: str) -> None:
        """With its processes and its anonymous volumes. A container that does not exist is no error."""
        try:
            self.call("DELETE", f"/containers/{quote(name)}", query={"force": "1", "v": "1"})
        except EngineDown:
            raise
        except EngineError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def labelled(self, label: str) -> list[str]:
        """The ids of all containers with a label, running or not."""
        filters = json.dumps({"label": [label]})
        found = self.call("GET", "/containers/json", query={"all": "1", "filters": filters})
        return [str(each["Id"]) for each in found or ()]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float | None) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _read_head(link: socket.socket) -> int:
    """The status of an answer. Byte by byte: the next byte belongs to the program. Raises OSError."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = link.recv(1)
        if not byte or len(head) >= _MAX_HEAD_BYTES:
            raise ConnectionError("no answer of HTTP")
        head += byte
    parts = head.split(None, 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise ConnectionError("no answer of HTTP")
    return int(parts[1])


def _message(answer: bytes) -> str:
    try:
        text = str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        text = answer.decode(errors="replace")
    return one_line(text)


def one_line(text: str) -> str:
    line = " ".join(text.split())[:_MAX_MESSAGE_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in line)
