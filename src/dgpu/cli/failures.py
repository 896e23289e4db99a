"""Error messages of one or two lines (problem, cause, remedy) and their exit codes."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgpu.client.errors import DgpuError


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_PERMITTED = 4
    NOT_FOUND = 5
    REFUSED = 6
    TIMEOUT = 7
    TASK_TIMEOUT = 124
    OWN_FAILURE = 125  # for verbs that normally return a task's code
    NO_COMMAND = 127  # as a shell
    INTERRUPTED = 130


class ReaderLeft(Exception):  # noqa: N818  not an error
    """The program that reads our stdout has closed it."""


class CliFailure(Exception):  # noqa: N818  a refusal is not always an error
    def __init__(
        self, message: str, exit_code: int = ExitCode.FAILED, *, error: DgpuError | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)
        self.error = error  # of the SDK, if it has one


def translated(error: Exception) -> CliFailure | None:
    """Translates an error of the SDK into a message; None for any other error."""
    if isinstance(error, CliFailure):
        return error
    errors = sys.modules.get(
        "dgpu.client.errors"
    )  # if the module is not imported, the error is not from the SDK
    if errors is None or not isinstance(error, errors.DgpuError):
        return None
    return CliFailure(_message(error), _exit_code(error), error=error)


def _exit_code(error: DgpuError) -> ExitCode:
    from dgpu.client import errors

    codes = {
        errors.Unreachable: ExitCode.TIMEOUT
        if isinstance(error.__cause__, TimeoutError)
        else ExitCode.UNREACHABLE,
        errors.ProviderAway: ExitCode.UNREACHABLE,
        errors.NotMaster: ExitCode.UNREACHABLE,
        errors.BadRequest: ExitCode.USAGE,
        errors.NotPermitted: ExitCode.NOT_PERMITTED,
        errors.NotFound: ExitCode.NOT_FOUND,
        errors.Refused: ExitCode.REFUSED,
        errors.WaitedTooLong: ExitCode.TIMEOUT,
    }
    return codes.get(type(error), ExitCode.FAILED)


_LOG_IN = ("Log in: dgpu login. Or give a token: DGPU_TOKEN or --token",)
_ROLE = ("Your role and tenants: dgpu whoami",)
_REMEDIES = {
    **dict.fromkeys(
        ("isolation_needed", "no_unix_user"), ("What each value means: docs/security.md, Users on nodes",)
    ),
    **dict.fromkeys(("token_needed", "wrong_token", "token_expired", "token_revoked"), _LOG_IN),
    **dict.fromkeys(("not_permitted", "tenant_not_allowed"), _ROLE),
}


def _message(error: DgpuError) -> str:
    from dgpu.client import errors
    from dgpu.client.language import field_text, language, told

    text = str(error).strip()
    if error.problem is not None:
        wrong = [each for each in error.errors if each.facts.get("expected")]
        if language() and wrong and len(wrong) == len(error.errors):
            named = (f"{each.path}: {field_text(each.code, each.facts, each.detail)}" for each in wrong[:3])
            text = " ".join(named)
        text = told("problem", error.code, error.problem.facts, text)
    if isinstance(error, errors.ProviderAway):
        return f"{text}\nTry again, or use an API token: DGPU_TOKEN or --token"
    if isinstance(error, errors.Unreachable):
        if isinstance(error.__cause__, TimeoutError):
            return f"{text}\nIt may be very busy. Try again, or check: dgpu doctor"
        if errors.NO_HTTP in text:
            return f"{text}\nIs it the gRPC port? Check the address: --server URL or DGPU_SERVER"
        if "standby" in text:
            return f"{text}\nA standby becomes master within seconds. Try again"
        local = "//127." in text or "//localhost" in text or "//[::1]" in text
        return f"{text}\n" + (
            "Start one: dgpu up" if local else "Check the address: --server URL or DGPU_SERVER"
        )
    return "\n".join([text, *_REMEDIES.get(error.code, ())])


def complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"dgpu: {message}\n")
    sys.stderr.flush()


def complain_in_json(failure: CliFailure) -> None:
    """On stderr, too: stdout has results only, so that a program never takes an error for one."""
    import json

    fact: dict[str, object] = {"message": failure.message, "exit_code": failure.exit_code}
    if failure.error is not None:
        wrong = [{"path": each.path, "detail": each.detail} for each in failure.error.errors]
        fact |= {"code": failure.error.code, "status": failure.error.status, "errors": wrong}
    sys.stdout.flush()
    sys.stderr.write(json.dumps({"error": fact}, ensure_ascii=False) + "\n")
    sys.stderr.flush()


def note(message: str) -> None:
    """For people; never data."""
    sys.stdout.flush()
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
