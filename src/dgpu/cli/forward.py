from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import connect, is_final, is_same_host, poll
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.output import print_document
from dgpu.cli.waiting_notes import WaitNotes

if TYPE_CHECKING:
    from dgpu.client.forwarding import Forwarder
    from dgpu.client.sync import Client

app = typer.Typer(add_completion=False)

MAX_PORT = 65_535


class Forward(NamedTuple):
    port: int
    local: int | None  # None: the same, or a free one; 0: a free one


@app.command()
def forward(
    ctx: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42.")],
    ports: Annotated[list[str], typer.Argument(metavar="PORT[:LOCAL]", help="8888, or 8888:9000.")],
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Of a task over several nodes. [0]")
    ] = None,
) -> int:
    """Reach TCP ports of a running task from this machine, until Ctrl-C or the end of the task.

    HTTP, WebSocket and any other protocol. LOCAL is the port on this machine; without it, the same number or a free
    one. On the scheduler's machine always a free one: the task may need the same. Only programs on this machine can
    connect.
    """
    flags = flags_of(ctx)
    (name,) = parse_ids([task_id])
    wanted = [parse_forward(text) for text in ports]
    client = connect(flags)
    if is_same_host(client.urls):
        # The task may run on this machine: its program must find its port free.
        wanted = [each._replace(local=each.local or 0) for each in wanted]
    task = poll(client, name, lambda seen: seen.status != "pending", WaitNotes(name).see)
    if is_final(task):
        raise CliFailure(f"{name} has ended ({task.status}).", ExitCode.REFUSED)
    return asyncio.run(forward_until_end(client, task.task_id, wanted, flags, rank=rank))


def parse_forward(text: str) -> Forward:
    port, colon, local = text.partition(":")
    if not _is_port(port) or (colon and not _is_port(local)):
        raise typer.BadParameter(f"{text!r}: expected PORT or PORT:LOCAL, each from 1 to {MAX_PORT}")
    return Forward(int(port), int(local) if colon else None)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_PORT


async def forward_until_end(
    client: Client,
    task_id: str,
    wanted: Sequence[Forward],
    flags: Flags,
    *,
    rank: int | None = None,
    path: str = "",
    ready: Callable[[int], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """`path`: what the printed address has after its host. `ready`: waits until the program behind the first local port
    answers; the address is printed then.
    """
    from dgpu.client.forwarding import Forwarder, local_url

    forwarder = Forwarder(client, task_id, rank=rank, say=lambda text: note(f"dgpu: {text}"))
    loop, left = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, left.set)
    try:
        opened = [(each.port, await _listen(forwarder, each)) for each in wanted]
        ended, leaving = asyncio.ensure_future(forwarder.ended()), asyncio.ensure_future(left.wait())
        if ready is not None:
            answers = asyncio.ensure_future(ready(opened[0][1]))
            await asyncio.wait({answers, ended, leaving}, return_when=asyncio.FIRST_COMPLETED)
            answers.cancel()
            if ended.done():
                raise CliFailure(
                    f"{task_id} has ended ({ended.result().status}). Its output: dgpu logs {task_id}"
                )
        _print(task_id, [(port, local, local_url(task_id, local) + path) for port, local in opened], flags)
        for port, _ in opened:
            await asyncio.to_thread(_tell_link, client, task_id, port, path, rank)
        await asyncio.wait({ended, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            note(f"dgpu: {task_id} has ended ({ended.result().status}); its ports are closed.")
        else:
            ended.cancel()
            again = " ".join(f"{port}:{local}" if port != local else str(port) for port, local in opened)
            note(
                f"\ndgpu: {task_id} continues. Reach it again: dgpu forward {task_id.removeprefix('task-')} {again}"
            )
    finally:
        forwarder.close()
    return ExitCode.OK


async def _listen(forwarder: Forwarder, wanted: Forward) -> int:
    from dgpu.client.forwarding import PortTaken

    try:
        return await forwarder.listen(wanted.port, wanted.port if wanted.local is None else wanted.local)
    except PortTaken as error:
        if wanted.local is not None:
            advice = f"Choose another one, or leave it out: dgpu forward ID {wanted.port}"
            raise CliFailure(f"{error} {advice}") from None
        local = await forwarder.listen(wanted.port, 0)
        note(f"dgpu: {error} Using {local} instead.")
        return local


def _tell_link(client: Client, task_id: str, port: int, path: str, rank: int | None) -> None:
    """The proxy's, if there is one that this machine can reach: it works without this command."""
    from dgpu.client.errors import DgpuError

    try:
        url = client.link(task_id, port, path=f"/{path}", rank=rank).url
    except DgpuError:
        return  # no proxy, or not allowed
    if is_same_host(client.urls) or not (urlsplit(url).hostname or "").endswith(".localhost"):
        note(f"In a browser also without this command (the link works once): {url}")


def _print(task_id: str, forwards: list[tuple[int, int, str]], flags: Flags) -> None:
    if flags.is_table or flags.output == "name":
        for port, local, url in forwards:
            typer.echo(
                url if flags.output == "name" else f"{url}  (port {port} of {task_id}, 127.0.0.1:{local})"
            )
        note("Ctrl-C ends the forwarding, not the task.")
    else:
        listed = [{"port": port, "local_port": local, "url": url} for port, local, url in forwards]
        print_document({"task_id": task_id, "forwards": listed}, flags)
