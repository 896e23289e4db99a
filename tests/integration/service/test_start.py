"""The modules that a start imports. Time is not measured: a module that is not imported costs none, on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# Pictures, forms and other people's services: none of it is needed to schedule.
HEAVY = {
    "apprise", "httpx", "jinja2", "litestar", "markdown", "pydantic", "pygments", "requests", "rich", "sqlalchemy",
    "textual",
}  # fmt: skip
# Work of the follower, which is a process of its own.
OF_THE_FOLLOWER = {
    "dgpu.service.follower.follower", "dgpu.service.follower.forecaster", "dgpu.service.follower.foresight",
    "dgpu.service.history.writer", "dgpu.service.telemetry.writer",
}  # fmt: skip

SCHEDULER = """
import asyncio, json, sys
from dgpu.cli.main import run
from dgpu.entry import scheduler

async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])

async def serve_and_look(options):
    from dgpu.entry.event_log import EventLog
    from dgpu.service.rest import app
    from dgpu.service.server import serve

    app._LaterFrame._begin = lambda frame: None  # nobody here waits for it
    stop = asyncio.Event()

    async def look(port):
        asked = {path: await get(port, path) for path in ("/health", "/ready", "/api/v1/tasks?limit=1")}
        print(json.dumps({"asked": asked, "modules": sorted(sys.modules)}))
        stop.set()

    looking = []
    await serve(
        options,
        lambda at: looking.append(asyncio.ensure_future(look(at.http.port))),
        on_committed=EventLog(call_later=asyncio.get_running_loop().call_later).on_committed,
        stop=stop,
    )

scheduler._serve = serve_and_look
sys.exit(run(["scheduler", "--config", sys.argv[1]]))
"""

AGENT = """
import json, sys
import uvloop
from dgpu.cli.main import run

def look(serving):
    serving.close()
    print(json.dumps({"modules": sorted(sys.modules)}))

uvloop.run = look
sys.exit(run(["agent", "--config", sys.argv[1]]))
"""


def started(program: str, config: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_scheduler_gives_its_first_answers_without_heavy_imports(tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text(
        "server: {http_address: '127.0.0.1:0', grpc_address: '127.0.0.1:0'}\n"
        f"storage: {{snapshot_dir: {tmp_path}/state}}\n"
    )
    found = started(SCHEDULER, config)
    assert found["asked"] == {"/health": 200, "/ready": 200, "/api/v1/tasks?limit=1": 200}
    assert (HEAVY | OF_THE_FOLLOWER) & set(found["modules"]) == set()


def test_an_agent_starts_without_heavy_imports(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"gpu: {{detection_method: simulated, simulated: 1xV100}}\nexecutor: {{work_dir: {tmp_path}/agent}}\n"
    )
    found = started(AGENT, config)
    assert (HEAVY | {"uvicorn", "sqlite3", "dgpu.service", "dgpu.core.state"}) & set(
        found["modules"]
    ) == set()
