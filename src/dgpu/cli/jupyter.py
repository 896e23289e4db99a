from __future__ import annotations

import asyncio
import secrets
import shlex
from typing import Annotated

import typer

from dgpu.cli import submission as s
from dgpu.cli.connection import connect, is_final, is_same_host, poll
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.forward import Forward, forward_until_end
from dgpu.cli.uploading import with_uploads
from dgpu.cli.waiting_notes import WaitNotes

app = typer.Typer(add_completion=False)

PORT = 8888
_ANSWER_SECONDS = 0.5
# One line of shell: the test for the package is part of the task, because only the node knows.
_START = (
    "python -c 'import jupyterlab' || {{ echo 'JupyterLab is not installed for this python. Install it there: "
    "python -m pip install jupyterlab' >&2; exit 1; }}; "
    "exec python -m jupyterlab --no-browser --allow-root --ip=127.0.0.1 --port=$DGPU_PORT --port-retries=0 "
    "--ServerApp.local_hostnames=localhost --ServerApp.local_hostnames=$DGPU_TASK_ID.localhost "
    f"--ServerApp.local_hostnames=$DGPU_TASK_ID-{PORT}.localhost {{more}}"
)


@app.command(context_settings=s.CONTEXT)
def jupyter(
    ctx: typer.Context,
    command: s.Command = None,
    local: Annotated[
        int | None, typer.Option("--local-port", metavar="P", min=1, max=65_535, help="On this machine.")
    ] = None,
) -> int:
    """Start JupyterLab of your Python on a GPU, and print its address. Flags as for submit; options of JupyterLab
    after `--`.

    JupyterLab must be installed in the environment of the task. Ctrl-C ends the connection, not JupyterLab; to stop
    it: dgpu cancel ID.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    task = s.task_fields(ctx, [_START.format(more=shlex.join(command or []))])
    task.setdefault("name", "jupyter")
    task["ports"] = [PORT]
    # JupyterLab reads it from its environment: arguments are visible to all users of a node.
    token = secrets.token_urlsafe(24)
    task["env"] = task.get("env", {}) | {"JUPYTER_TOKEN": token}
    task_id = client.submit(**with_uploads(client, [task])[0]).task_id
    note(f"dgpu: JupyterLab is {task_id}. To stop it: dgpu cancel {task_id.removeprefix('task-')}")
    seen = poll(client, task_id, lambda each: each.status != "pending", WaitNotes(task_id).see)
    if is_final(seen):
        raise CliFailure(
            f"{task_id} has ended ({seen.status}). Its output: dgpu logs {task_id}", ExitCode.FAILED
        )
    here = local if local is not None else 0 if is_same_host(client.urls) else None
    return asyncio.run(
        forward_until_end(
            client,
            task_id,
            [Forward(PORT, here)],
            flags,
            path=f"lab?token={token}",
            ready=answers_http,
        )
    )


async def answers_http(local_port: int) -> None:
    """Returns when a server of HTTP answers: a link that leads nowhere yet would be opened too early."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", local_port)
            writer.write(b"GET /api HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = await reader.read(5)
            writer.close()
        except OSError:
            answer = b""
        if answer == b"HTTP/":
            return
        await asyncio.sleep(_ANSWER_SECONDS)
