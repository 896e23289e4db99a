"""What a failed call to etcd means.

A write has one of three results: it was applied, it was certainly not applied, or this is unknown. Only answers that a
member gives before it proposes a write prove that the write was not applied. A member answers "no space" before it
proposes, but also after it has applied the write that crossed the quota. So that answer proves nothing alone.
"""

from __future__ import annotations

import enum

import grpc


class Meaning(enum.Enum):
    UNKNOWN = "unknown"  # try the same call again
    TOKEN = "token"  # not applied: sign in, then try again  # noqa: S105 - a name
    REFUSED = "refused"  # not applied: an operator must act
    NO_SPACE = "no space"  # applied or not: read the keys
    NO_LEASE = "no lease"  # not applied
    LEASE_EXISTS = "lease exists"
    ANSWER_TOO_LARGE = "answer too large"  # a read: ask for less


_NO_SPACE = "database space exceeded"
_OLD_REVISION = "revision of auth store is old"
_TOKEN_TEXTS = ("invalid auth token", _OLD_REVISION, "user name is empty")
_REFUSED_TEXTS = (
    "authentication failed",
    "permission denied",
    "request is too large",
    "authentication is not enabled",
    "too many operations",
    "too many learner members",
    "can only promote a learner",
    "unhealthy cluster",
    "re-configuration failed",
    "member not found",
    "Peer URLs already exists",
)


def meaning(error: grpc.RpcError) -> Meaning:
    code, text = error.code(), (error.details() or "")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if _NO_SPACE in text:
            return Meaning.NO_SPACE
        return Meaning.ANSWER_TOO_LARGE if "larger than max" in text else Meaning.UNKNOWN
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in text:
        return Meaning.NO_LEASE
    if code is grpc.StatusCode.FAILED_PRECONDITION and "lease already exists" in text:
        return Meaning.LEASE_EXISTS
    if any(one in text for one in _TOKEN_TEXTS):
        return Meaning.TOKEN
    if any(one in text for one in _REFUSED_TEXTS) or code is grpc.StatusCode.UNIMPLEMENTED:
        return Meaning.REFUSED
    return Meaning.UNKNOWN


def action(error: grpc.RpcError, url: str) -> str:
    """The text of a refusal, with the action to take."""
    text = error.details() or str(error.code())
    if "request is too large" in text:
        return f"{url} refuses requests of 1 MiB: raise --max-request-bytes of etcd to its default of 1.5 MiB ({text})"
    if "authentication is not enabled" in text:
        return f"{url} has no users: remove the user and password, or enable authentication in etcd ({text})"
    if "user name is empty" in text:
        return f"{url} has users: give a user and a password ({text})"
    if "authentication failed" in text:
        return f"{url} does not accept the user or the password: check both ({text})"
    if "permission denied" in text:
        return f"{url}: the user needs read and write access to all keys under the prefix ({text})"
    return f"{url} refused a call: {text}"
