"""`python -m dgpu.serving app:factory`: serves the application that a factory returns, on $DGPU_PORT.

The application is ASGI (served by uvicorn), WSGI (by the standard library), or a function of one JSON value: then
POST / with a JSON body calls it, and GET /healthz answers 200.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

MAX_BODY_BYTES = 64 << 20


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].count(":") != 1:
        return _fail("usage: python -m dgpu.serving module:factory")
    module_name, name = arguments[0].split(":")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise
        return _fail(
            f"no module {module_name!r} in {str(Path.cwd())!r} or in the packages of {sys.executable}"
        )
    factory = getattr(module, name, None)
    if not callable(factory):
        return _fail(f"{module_name} has no function {name!r}")
    port = int(os.environ.get("DGPU_PORT", "8000"))
    app = factory() if _takes_nothing(factory) else factory
    if is_asgi(app):
        return _serve_asgi(app, port)
    return _serve_wsgi(app if _parameters(app) == 2 else as_wsgi(app), port)


def is_asgi(app: Any) -> bool:
    call = app if inspect.isfunction(app) or inspect.ismethod(app) else getattr(app, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(call) and _parameters(app) == 3


def as_wsgi(function: Callable[[Any], Any]) -> Callable[..., Iterable[bytes]]:
    """One JSON value in, one out. One call at a time: models are rarely safe for threads."""
    turn = threading.Lock()

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def answer(status: str, value: Any) -> Iterable[bytes]:
            body = json.dumps(value).encode()
            start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]

        if environ["REQUEST_METHOD"] != "POST":
            return answer("200 OK", {"status": "ready"})
        if environ.get("HTTP_TRANSFER_ENCODING"):  # the server does not read such bodies: it would look empty
            return answer("411 Length Required", {"error": "send the body with a Content-Length"})
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > MAX_BODY_BYTES:
            return answer("413 Content Too Large", {"error": f"at most {MAX_BODY_BYTES} bytes"})
        try:
            value = json.loads(environ["wsgi.input"].read(length) or b"null")
        except ValueError as error:
            return answer("400 Bad Request", {"error": f"the body is not JSON: {error}"})
        try:
            with turn:
                return answer("200 OK", function(value))
        except Exception as error:  # noqa: BLE001 - a failed call must not end the server
            return answer("500 Internal Server Error", {"error": f"{type(error).__name__}: {error}"})

    return application


class _Threads(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Request(WSGIRequestHandler):
    def address_string(self) -> str:
        return str(self.client_address[0])  # no look-up of names


def _serve_wsgi(app: Any, port: int) -> int:
    with make_server("127.0.0.1", port, app, server_class=_Threads, handler_class=_Request) as server:
        server.serve_forever()
    return 0


def _serve_asgi(app: Any, port: int) -> int:
    try:
        import uvicorn
    except ModuleNotFoundError:
        return _fail("an ASGI application needs uvicorn: python -m pip install uvicorn")
    uvicorn.run(app, host="127.0.0.1", port=port, timeout_graceful_shutdown=30, timeout_keep_alive=10)
    return 0


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return all(
        each.default is not each.empty or each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        for each in parameters
    )


def _parameters(function: Any) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 2


def _fail(text: str) -> int:
    sys.stderr.write(f"dgpu serve: {text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
