from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from dgpu.cli.connection import builtins, connect, is_same_host
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.output import print_document
from dgpu.cli.whoami import tenants_text

if TYPE_CHECKING:
    from dgpu.client.credentials import Login

app = typer.Typer(add_completion=False)

_NOT_BY_TOKEN = {
    "uid": "The scheduler knows you by your Unix user and did not look at this token: no login is needed.",
    "open": "This scheduler asks for no token (auth.mode is none): no login is needed.",
}


@app.command()
def login(
    ctx: typer.Context,
    oidc: Annotated[
        bool, typer.Option("--oidc", help="Sign in with an account of the identity provider, in a browser.")
    ] = False,
    consent: Annotated[
        bool,
        typer.Option(
            "--consent",
            help="With --oidc: let the provider ask for your consent. Some do not allow renewal otherwise.",
        ),
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="With --oidc: only print the address, for any browser.")
    ] = False,
) -> None:
    """Store a token for the scheduler, or for all of them. It is read from the terminal without echo, or from stdin.

    With --oidc, it comes from the identity provider: a browser opens, or its address is printed. It is renewed by
    itself if the provider allows that.
    """
    from dgpu.client.credentials import Login, store_token

    flags = flags_of(ctx)
    if (consent or no_browser) and not oidc:
        raise CliFailure(f"{'--consent' if consent else '--no-browser'} needs --oidc.", ExitCode.USAGE)
    signed_in = (
        _from_provider(flags, consent=consent, opens=not no_browser)
        if oidc
        else Login(flags.token or _read_token())
    )
    flags.token = signed_in.token
    client = connect(flags)
    for url in client.urls:
        if urlsplit(url).scheme == "http" and not is_same_host([url]):
            note(f"{url} is not encrypted: anybody on the way can read the token.")
    told = builtins(client.whoami())
    if told["source"] not in {"token", "oidc"}:
        raise CliFailure(_NOT_BY_TOKEN.get(told["source"], "The scheduler did not look at this token."))
    path = store_token(client.urls, signed_in.token, signed_in.sign_in)
    _print(flags, {**told, "server": ",".join(client.urls), "stored_in": str(path)})
    if oidc and signed_in.sign_in is None:
        note(
            "The provider gave no refresh token: sign in again when the token ends."
            + ("" if consent else " If the provider needs your consent for it: dgpu login --oidc --consent")
        )


def _from_provider(flags: Flags, *, consent: bool, opens: bool) -> Login:
    from dgpu.cli.browser_sign_in import sign_in

    if flags.token:
        raise CliFailure("Give either --oidc or a token (--token, DGPU_TOKEN), not both.", ExitCode.USAGE)
    found = connect(flags).sign_in_methods()
    if found.cli is None:
        missing = "auth.oidc.cli_client_id" if found.oidc else "auth.oidc.issuer"
        raise CliFailure(
            f"This scheduler offers no sign-in from the command line: {missing} is not set. Use a token: dgpu login"
        )
    return sign_in(found.cli.issuer, found.cli.client_id, found.cli.scopes, consent=consent, opens=opens)


def _read_token() -> str:
    if sys.stdin.isatty():
        import getpass

        token = getpass.getpass("Token: ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise CliFailure("No token was given. Send it to stdin, or type it at the prompt.", ExitCode.USAGE)
    return token.strip()


def _print(flags: Flags, told: dict[str, object]) -> None:
    if flags.output == "name":
        typer.echo(told["user"])
    elif not flags.is_table:
        print_document(told, flags)
    else:
        tenants = told["tenants"]
        whose = tenants_text(tenants if isinstance(tenants, list) else [])
        typer.echo(f"Logged in to {told['server']} as {told['user']}: {told['role']}, tenants: {whose}")
        note(f"The token is stored in {told['stored_in']}")
