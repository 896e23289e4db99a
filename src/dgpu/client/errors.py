# ruff: noqa: N818 - the name states the failure
"""Errors between a program and the scheduler.

DgpuError
├── Unreachable      no scheduler answered, or only standbys did; the text lists each address with the reason
│   └── ProviderAway  the identity provider does not answer, so a sign-in cannot be renewed
├── NotMaster        503: all addresses are standbys of a master that is not one of them
├── BadRequest       400, 405, 413, 415: the request itself is wrong; sending it again cannot help
├── NotPermitted     401, 403, 421: a token is missing or does not allow this
├── NotFound         404: no such task, node or call
├── Refused          409, 422, 429, 507: understood, but refused (impossible, a limit, full)
├── ServerFailed     any other answer that is not a success
└── WaitedTooLong    the time limit of `wait` is over; the tasks continue
"""

from __future__ import annotations

from dgpu.wire.answers import FieldError, Problem

NO_HTTP = "does not speak HTTP"  # for example the gRPC port of a scheduler


class DgpuError(Exception):
    def __init__(self, message: str, *, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        # Of submit_many: the tasks of earlier parts, which were accepted and stay submitted.
        self.submitted: list[str] = []

    @property
    def code(self) -> str:
        return self.problem.code if self.problem else ""

    @property
    def status(self) -> int:
        return self.problem.status if self.problem else 0

    @property
    def errors(self) -> list[FieldError]:
        return self.problem.errors if self.problem else []


class Unreachable(DgpuError):
    pass


class ProviderAway(Unreachable):
    pass


class NotMaster(DgpuError):
    pass


class BadRequest(DgpuError):
    pass


class NotPermitted(DgpuError):
    pass


class NotFound(DgpuError):
    pass


class Refused(DgpuError):
    pass


class ServerFailed(DgpuError):
    pass


class WaitedTooLong(DgpuError):
    pass


_BY_STATUS: dict[int, type[DgpuError]] = {
    400: BadRequest,
    401: NotPermitted,
    403: NotPermitted,
    404: NotFound,
    405: BadRequest,
    409: Refused,
    413: BadRequest,
    415: BadRequest,
    421: NotPermitted,
    422: Refused,
    429: Refused,
    507: Refused,
}


def why_unreachable(error: BaseException, *, is_http: bool) -> str:
    """The bytes of an unknown server do not belong in a terminal: the reason describes them instead."""
    if not is_http:
        return NO_HTTP
    why = str(error)
    return why if why and why.isprintable() else type(error).__name__


def error_of(problem: Problem) -> DgpuError:
    kind = _BY_STATUS.get(problem.status, ServerFailed)
    return kind(problem.detail or problem.title, problem=problem)
