"""Calls to an etcd cluster over gRPC: several endpoints, TLS, a user, deadlines.

Every call may be sent more than once, to different members. All our calls are written so that a repetition does no
harm: transactions compare the keys that they change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from dgpu.journal.engine import EngineError, EngineRefused, EngineUnavailable
from dgpu.journal.etcd.failures import Meaning, action, meaning
from dgpu.journal.etcd.settings import Endpoint, EtcdSettings, parse_endpoints
from dgpu.journal.etcd.tls import TlsFiles, changed_tls_files, read_tls_files, why_not
from dgpu.journal.etcd.versions import check_version
from dgpu.wire.proto import etcd_pb2 as pb

_PAUSE_S = 0.05
_MAX_ANSWER_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses pings more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # a repetition must be seen: its outcome decides
    ("grpc.enable_http_proxy", 0),
)


class NoSpace(Exception):  # noqa: N818 - it names the state of the engine
    """The quota is used up. `maybe_applied`: an earlier try of the same call has an unknown outcome."""

    def __init__(self, *, maybe_applied: bool) -> None:
        super().__init__("the engine's quota is used up")
        self.maybe_applied = maybe_applied


class NoLease(Exception):  # noqa: N818
    pass


class LeaseExists(Exception):  # noqa: N818
    pass


class AnswerTooLarge(Exception):  # noqa: N818
    pass


class Connection:
    """Several threads may call it. An endpoint is used until it fails; then the next one is."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._endpoints = parse_endpoints(settings)
        self._tls = read_tls_files(settings) if self._endpoints[0].is_tls else None
        self._channels = _channels(self._endpoints, self._tls)
        self._old_channels: list[grpc.Channel] = []  # with earlier certificates: calls may be under way
        self._current = 0
        self._vetted: set[int] = set()
        self._cluster_id = 0
        self._token = ""
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def call(self, method: str, request: Any, answer_type: Any, *, attempt_s: float = 0) -> Any:
        """The answer of the first member that gives one.

        Raises EngineUnavailable (the outcome is unknown), EngineRefused, NoSpace, NoLease, LeaseExists or
        AnswerTooLarge.
        """
        give_up_at = time.monotonic() + max(self._settings.patience_s, attempt_s)
        unknown = False
        signed_in = False
        tried = 0
        why = "no member answered"
        while not self._closed.is_set() and (left_s := give_up_at - time.monotonic()) > 0:
            number = self._current
            try:
                return self._attempt(
                    number, method, request, answer_type, min(left_s, attempt_s or self._settings.attempt_s)
                )
            except grpc.RpcError as error:
                sense, url = meaning(error), self._endpoints[number].url
                why = f"{url}: {error.code().name} {error.details() or ''}".rstrip()
                if sense is Meaning.TOKEN and self._settings.user and not signed_in:
                    self._token, signed_in = "", True
                    continue
                _raise_decided(sense, error, url, unknown=unknown)
                unknown = True
            self._turn_from(number)
            tried += 1
            if tried % len(self._endpoints) == 0:
                self._closed.wait(_PAUSE_S)
        if not self._vetted and not self._closed.is_set():
            why = self._looked_into() or why
        raise EngineUnavailable(f"etcd did not answer within {self._settings.patience_s:g} s: {why}")

    def each(self, method: str, request: Any, answer_type: Any) -> list[tuple[str, Any]]:
        """The answers of all members that give one, each with its endpoint. Raises EngineUnavailable if none does."""
        asked = self.ask_each(method, request, answer_type)
        answers = [(url, answer) for url, answer in asked if not isinstance(answer, EngineUnavailable)]
        if not answers:
            raise EngineUnavailable(f"no member of etcd answers: {asked[-1][1]}")
        for _, answer in answers:
            if isinstance(answer, EngineRefused):
                raise answer
        return answers

    def ask_each(self, method: str, request: Any, answer_type: Any) -> list[tuple[str, Any]]:
        """Every endpoint, with its answer, or with the EngineUnavailable or EngineRefused that it led to."""
        asked: list[tuple[str, Any]] = []
        for number, endpoint in enumerate(self._endpoints):
            try:
                answer = self._attempt(number, method, request, answer_type, self._settings.attempt_s)
            except grpc.RpcError as error:
                answer = EngineUnavailable(
                    f"{endpoint.url}: {error.code().name} {error.details() or ''}".rstrip()
                )
            except EngineError as error:
                answer = error
            asked.append((endpoint.url, answer))
        return asked

    def stream(self, method: str, requests: Iterator[Any], request_type: Any, answer_type: Any) -> Any:
        """A call with answers until it is cancelled. It ends with the endpoint: open another one then."""
        number = self._current
        self._vet(number, self._settings.attempt_s)
        open_stream = self._channels[number].stream_stream(
            method,
            request_serializer=request_type.SerializeToString,
            response_deserializer=answer_type.FromString,
        )
        return open_stream(requests, metadata=self._metadata(number, self._settings.attempt_s))

    def turn(self) -> None:
        """The present endpoint failed in a stream."""
        self._turn_from(self._current)

    def close(self) -> None:
        self._closed.set()
        for channel in (*self._channels, *self._old_channels):
            channel.close()

    def _attempt(self, number: int, method: str, request: Any, answer_type: Any, timeout_s: float) -> Any:
        try:
            self._vet(number, timeout_s)
            metadata = self._metadata(number, timeout_s)
            answer = self._unary(number, method, request, answer_type, timeout_s, metadata)
        except ValueError as error:
            raise EngineUnavailable("the connection to etcd is closed") from error  # by another thread
        self._check_cluster(answer.header.cluster_id, number)
        return answer

    def _unary(
        self, number: int, method: str, request: Any, answer_type: Any, timeout_s: float, metadata: Any = ()
    ) -> Any:
        call = self._channels[number].unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer_type.FromString,
        )
        return call(request, timeout=timeout_s, metadata=metadata)

    def _vet(self, number: int, timeout_s: float) -> None:
        """Before its first use, an endpoint tells its version and its cluster."""
        if number in self._vetted:
            return
        metadata = self._metadata(number, timeout_s)
        status = self._unary(
            number,
            "/etcdserverpb.Maintenance/Status",
            pb.StatusRequest(),
            pb.StatusResponse,
            timeout_s,
            metadata,
        )
        check_version(status.version, self._endpoints[number].url)
        self._check_cluster(status.header.cluster_id, number)
        self._vetted.add(number)

    def _check_cluster(self, cluster_id: int, number: int) -> None:
        if not cluster_id:
            return  # answers to Defragment have no header
        with self._lock:
            self._cluster_id = self._cluster_id or cluster_id
            if cluster_id == self._cluster_id:
                return
        raise EngineRefused(
            f"{self._endpoints[number].url} belongs to etcd cluster {cluster_id:x}, the other endpoints to "
            f"{self._cluster_id:x}: name members of one cluster only, and restart after a restore of etcd"
        )

    def _metadata(self, number: int, timeout_s: float) -> tuple[tuple[str, str], ...]:
        """A member without a leader refuses at once, instead of keeping the call until its deadline."""
        settings = self._settings
        if not settings.user:
            return (("hasleader", "true"),)
        token = self._token
        if not token:
            request = pb.AuthenticateRequest(name=settings.user, password=settings.password)
            answer = self._unary(
                number, "/etcdserverpb.Auth/Authenticate", request, pb.AuthenticateResponse, timeout_s
            )
            self._token = token = answer.token
        return (("hasleader", "true"), ("token", token))

    def _turn_from(self, number: int) -> None:
        self._renew_certificates()
        with self._lock:
            if self._current == number:
                self._current = (number + 1) % len(self._endpoints)

    def _renew_certificates(self) -> None:
        """After a failure: the files may have been replaced since. Open connections outlive their certificates."""
        if self._tls is None or (found := changed_tls_files(self._settings, self._tls)) is None:
            return
        with self._lock:
            if found == self._tls or self._closed.is_set():
                return
            before, self._old_channels = self._old_channels, self._channels
            self._tls, self._channels = found, _channels(self._endpoints, found)
        for channel in before:
            channel.close()

    def _looked_into(self) -> str:
        """Endpoints that can never be used, and why. Raises EngineRefused if that is all of them.

        Only before the first use: a running scheduler waits for the operator instead of ending.
        """
        found = [why_not(one, self._settings, self._settings.attempt_s) for one in self._endpoints]
        text = "; ".join(sorted(filter(None, found)))
        if all(found):
            raise EngineRefused(text)
        return text


def _raise_decided(sense: Meaning, error: grpc.RpcError, url: str, *, unknown: bool) -> None:
    if sense is Meaning.NO_SPACE:
        raise NoSpace(maybe_applied=unknown) from error
    if sense is Meaning.NO_LEASE:
        raise NoLease from error
    if sense is Meaning.LEASE_EXISTS:
        raise LeaseExists from error
    if sense is Meaning.ANSWER_TOO_LARGE:
        raise AnswerTooLarge from error
    if sense in {Meaning.REFUSED, Meaning.TOKEN}:
        raise EngineRefused(action(error, url)) from error


def _channels(endpoints: tuple[Endpoint, ...], tls: TlsFiles | None) -> list[grpc.Channel]:
    if tls is None:
        return [grpc.insecure_channel(one.target, options=_OPTIONS) for one in endpoints]
    credentials = tls.credentials()
    return [grpc.secure_channel(one.target, credentials, options=_OPTIONS) for one in endpoints]
