"""Follows the head and the leader key in a thread, so that standbys need not ask all the time. Only a hint."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from dgpu.journal.engine import EngineError
from dgpu.journal.etcd.connection import Connection
from dgpu.journal.etcd.keys import Keys, head_of
from dgpu.wire.proto import etcd_pb2 as pb

_PAUSE_S = 0.2


class KeyWatch:
    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._changed = threading.Condition()
        self._index = 0
        self._fence = 0
        self._leader_changed = False  # since the last wait
        self._closed = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)
        self._thread.start()

    def wait(self, index: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._index > index or self._leader_changed, timeout_s)
            self._leader_changed = False

    def close(self) -> None:
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            done = threading.Event()
            try:
                self._follow(done)
            except (grpc.RpcError, EngineError, ValueError):  # ValueError: the channel is closed
                self._connection.turn()
            finally:
                done.set()
            self._closed.wait(_PAUSE_S)

    def _follow(self, done: threading.Event) -> None:
        self._stream = stream = self._connection.stream(
            "/etcdserverpb.Watch/Watch", self._requests(done), pb.WatchRequest, pb.WatchResponse
        )
        created = 0
        try:
            for answer in stream:
                if answer.canceled or self._closed.is_set():
                    return
                created += answer.created
                if answer.created and created == 2:
                    self._read()  # the changes before the watch began
                for event in answer.events:
                    self._note(event.kv if event.type == pb.Event.PUT else None, event.kv.key)
        finally:
            stream.cancel()

    def _requests(self, done: threading.Event) -> Iterator[pb.WatchRequest]:
        for key in (self._keys.head, self._keys.leader):
            yield pb.WatchRequest(create_request=pb.WatchCreateRequest(key=key))
        done.wait()  # the end of the requests might end the stream

    def _read(self) -> None:
        for key in (self._keys.head, self._keys.leader):
            request = pb.RangeRequest(key=key, serializable=True)
            found = self._connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
            self._note(found[0] if found else None, key)

    def _note(self, found: pb.KeyValue | None, key: bytes) -> None:
        with (
            self._changed,
            contextlib.suppress(ValueError),
        ):  # a value that is not ours: the reads will refuse it
            if key == self._keys.leader:
                fence = found.create_revision if found is not None else 0
                self._leader_changed |= fence != self._fence
                self._fence = fence
            elif found is not None:
                self._index = max(self._index, head_of(found.value, found.mod_revision).index)
            self._changed.notify_all()
