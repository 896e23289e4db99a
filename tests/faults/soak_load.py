"""The roles of a soak that run in processes of their own: `python -m tests.faults.soak_load ROLE HTTP_PORT GRPC_PORT
NUMBER`.

`submit`: NUMBER tasks a second. `flood`: NUMBER idle connections to each port, as another user where possible, opened
again when they are closed. `readers`: NUMBER streams, of which a kilobyte is read now and then. `hoard`: NUMBER
connections that ask for large pages ahead and read nothing. Each prints one JSON line when its input ends.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - another user may not be able to read the library
import http.client
import json
import os
import select
import socket
import sys
import time

_NOBODY = 65_534
_TASKS_PER_SUBMIT = 5
_STREAMS = (b"/api/v1/events", b"/api/v1/board/stream")
_MAX_DIALS_PER_SECOND = 1_000
_BATCH = {"command": "true", "gpu_count": 1, "name": "soak"}


def is_over() -> bool:
    """The parent closes our input."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def submit(http_port: int, _grpc_port: int, rate: int) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)
    body = json.dumps({"task": _BATCH, "count": _TASKS_PER_SUBMIT})
    begun_s, sent, failures = time.monotonic(), 0, []
    while not is_over():
        behind = (time.monotonic() - begun_s) * rate - sent
        if behind < _TASKS_PER_SUBMIT:
            time.sleep(0.005)
            continue
        try:
            connection.request("POST", "/api/v1/tasks/batch", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status != 201:
                failures.append(f"{response.status} {text[:200]!r}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            connection.close()
        sent += _TASKS_PER_SUBMIT
    return {"submitted": sent, "failures": len(failures), "first_failures": failures[:3]}


def flood(http_port: int, grpc_port: int, number: int) -> dict[str, object]:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    wanted = [http_port] * number + [grpc_port] * (number // 4)
    held: list[socket.socket | None] = [None] * len(wanted)
    dials = refused = 0
    while not is_over():
        budget = _MAX_DIALS_PER_SECOND // 20
        for place, client in enumerate(held):
            if client is not None and _is_closed(client):
                client.close()
                held[place] = None
            if held[place] is None and budget > 0:
                budget -= 1
                dials += 1
                held[place] = _dial(wanted[place])
                refused += held[place] is None
        time.sleep(0.05)
    return {
        "dials": dials,
        "dials_failed": refused,
        "held": sum(client is not None for client in held),
        "uid": os.getuid(),
    }


def _dial(port: int) -> socket.socket | None:
    try:
        client = socket.create_connection(("127.0.0.1", port), timeout=1)
    except OSError:
        return None
    client.setblocking(False)
    return client


def _is_closed(client: socket.socket) -> bool:
    try:
        return not client.recv(4_096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def readers(http_port: int, _grpc_port: int, number: int) -> dict[str, object]:
    return _hold(
        http_port, [_request(_STREAMS[place % 2]) for place in range(number)], bytes_per_second=1_024
    )


def hoard(http_port: int, _grpc_port: int, number: int) -> dict[str, object]:
    return _hold(http_port, [_request(b"/api/v1/tasks?limit=1000") * 50] * number, bytes_per_second=0)


def _request(path: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n" % path


def _hold(port: int, requests: list[bytes], bytes_per_second: int) -> dict[str, object]:
    held: list[socket.socket | None] = [None] * len(requests)
    opened = 0
    while not is_over():
        for place, request in enumerate(requests):
            client = held[place]
            if client is None:
                held[place] = _ask(port, request)
                opened += 1
            elif bytes_per_second:
                with contextlib.suppress(BlockingIOError):
                    try:
                        gone = not client.recv(bytes_per_second)
                    except ConnectionError:
                        gone = True
                    if gone:
                        client.close()
                        held[place] = None
        time.sleep(1.0)
    return {"opened": opened, "held": sum(client is not None for client in held)}


def _ask(port: int, request: bytes) -> socket.socket | None:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(30)
    try:
        client.connect(("127.0.0.1", port))
        client.sendall(request)
    except OSError:
        client.close()
        return None
    client.setblocking(False)
    return client


ROLES = {"submit": submit, "flood": flood, "readers": readers, "hoard": hoard}

if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    print(json.dumps(ROLES[role](*map(int, numbers))), flush=True)
