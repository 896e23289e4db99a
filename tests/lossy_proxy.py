"""A proxy that loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Passes requests on and closes the connection instead of passing the answer back, the first times."""

    def __init__(self, port: int, losses: int) -> None:
        self._to = port
        self.losses = losses
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._to)) as server,
            contextlib.suppress(OSError),
        ):
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            while answer := server.recv(1 << 20):
                if self.losses > 0:
                    self.losses -= 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while request := client.recv(1 << 20):
                server.sendall(request)
            server.shutdown(socket.SHUT_RDWR)
