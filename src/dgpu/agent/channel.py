"""The connection to a scheduler: plain text on one machine, TLS with certificates on both sides otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from dgpu.wire.machines import SCHEDULER_NAME

if TYPE_CHECKING:
    from dgpu.agent.certificate import Certificate  # imports cryptography, which plain agents do without

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_OPTIONS: list[tuple[str, Any]] = [
    # The session sets the pauses between calls: a shared subchannel would add its own, up to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
# The certificate names the role: the scheduler may be reached under any host name.
_TLS_OPTIONS = [*_OPTIONS, ("grpc.ssl_target_name_override", SCHEDULER_NAME)]

OpenChannel = Callable[[str], grpc.aio.Channel]


class CertificateUnusable(Exception):  # noqa: N818 - it says what happened
    """The certificate of this machine is missing, damaged or expired. The text says what to do."""


def open_plain(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def open_tls(address: str, certificate: Certificate) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        certificate.authority_pem, certificate.key_pem, certificate.certificate_pem
    )
    return grpc.aio.secure_channel(address, credentials, options=_TLS_OPTIONS)
