from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgpu.cli.flags import flags_of
from dgpu.cli.output import Column, print_rows

app = typer.Typer(add_completion=False)

COLUMNS = (
    Column("CHECK", lambda row: str(row["name"])),
    Column("STATUS", lambda row: str(row["status"])),
    Column(
        "DETAIL",
        lambda row: row["detail"] + (f" → {row['advice']}" if row["advice"] else ""),
        stretches=True,
        wraps=True,
    ),
)


@app.command()
def doctor(
    ctx: typer.Context,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="D", help="The directory of `dgpu up`.")
    ] = None,
) -> int:
    """Check this machine and its scheduler: ok, warn or fail, with advice. The exit code is 1 if a check fails."""
    import os

    import msgspec

    from dgpu.client.server import checked_urls
    from dgpu.entry.doctor import Verdict, examine

    flags = flags_of(ctx)
    given = flags.server or os.environ.get("DGPU_SERVER")
    try:
        servers = checked_urls(given) if given else ()
    except ValueError as error:
        raise typer.BadParameter(
            str(error), param_hint="--server" if flags.server else "DGPU_SERVER"
        ) from None
    checks = examine(servers, data_dir)
    rows: list[dict[str, Any]] = msgspec.to_builtins(checks)
    print_rows({"checks": rows}, rows, COLUMNS, "name", flags)
    return 1 if any(check.status is Verdict.FAIL for check in checks) else 0
