from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command()
def demo() -> int:
    """A one-minute tour: simulated GPUs, real processes, a mixed load, kill -9 of both services, no task lost.

    The demo uses a temporary directory and free ports, and cleans up at the end.
    """
    from dgpu.entry.demo import demo

    return demo()
