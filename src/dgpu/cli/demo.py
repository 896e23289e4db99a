from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command()
def demo() -> int:
    """A tour in a minute: simulated GPUs, real processes, a mixed load, kill -9 of both services, nothing lost.

    Everything happens in a temporary directory and on free ports, and is cleaned up at the end.
    """
    from dgpu.entry.demo import demo

    return demo()
