"""The scheduler's own certificate. It is renewed while the scheduler runs: each handshake asks for the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import grpc

from dgpu.service.machines.authority import Authority, IssuedPair
from dgpu.wire.machines import SCHEDULER_NAME

_RENEWED_AT = 2 / 3  # of its lifetime


class SchedulerCertificate:
    """May be asked from any thread: gRPC asks from its own ones."""

    def __init__(
        self,
        authority: Authority,
        *,
        lifetime_s: int,
        clock: Callable[[], float],
        names: Sequence[str] = (SCHEDULER_NAME,),
    ) -> None:
        self._authority = authority
        self._names = tuple(names)
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pair, self._renew_at_s = self._issue()

    def current(self) -> IssuedPair:
        with self._lock:
            if self._clock() >= self._renew_at_s:
                self._pair, self._renew_at_s = self._issue()
            return self._pair

    def server_credentials(self) -> grpc.ServerCredentials:
        """Clients must show a certificate of the same authority."""
        given = self.current()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            now = self.current()
            if now is given:
                return None
            given = now
            return self._configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(given),
            changed,  # type: ignore[arg-type]  # None means: no change
            require_client_authentication=True,
        )

    def _configuration(self, pair: IssuedPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(pair.key_pem, pair.certificate_pem)], self._authority.certificate_pem
        )

    def _issue(self) -> tuple[IssuedPair, float]:
        now_s = int(self._clock())
        pair = self._authority.issue_scheduler(self._names, now_s=now_s, lifetime_s=self._lifetime_s)
        return pair, now_s + (pair.expires_at_s - now_s) * _RENEWED_AT
