"""The whole service in a process of its own, for tests that stop it, kill it, and take its files away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys
from pathlib import Path
import msgspec, uvloop
from dgpu.service.options import ServiceOptions
from dgpu.wire.address import Address
from dgpu.service.server import serve

any_port = Address(host="127.0.0.1", port=0)
more = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
options = ServiceOptions(data_dir=Path(sys.argv[1]), http=any_port, grpc=any_port, **more)
uvloop.run(serve(options, lambda at: print(msgspec.json.encode(at).decode(), file=sys.stderr, flush=True)))
"""


class Served:
    """Its log is in the file `log`, if one is given."""

    def __init__(
        self, data_dir: Path, *, log: Path | None = None, env: dict[str, str] | None = None, **options: Any
    ):
        with (log or Path("/dev/null")).open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(data_dir), json.dumps(options)],
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            if line.startswith('{"http"'):
                self.at = json.loads(line)
                return
            said.append(line)
        raise AssertionError(f"it did not start: {self.process.wait()} {''.join(said)[-2000:]}")

    def ask(self, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.at['http']['port']}{path}"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def try_to_ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            return 200, self.ask(path, body)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def wait_until(condition: Callable[[], bool]) -> None:
    """For ever: the test's own limit ends it."""
    while not condition():
        time.sleep(0.2)


def listed(served: Served) -> set[str]:
    """All tasks, page by page."""
    ids: set[str] = set()
    cursor = ""
    while True:
        page = served.ask(f"/api/v1/tasks?limit=500{cursor}")
        ids |= {task["task_id"] for task in page["tasks"]}
        if not page.get("next_cursor"):
            return ids
        cursor = f"&cursor={page['next_cursor']}"
