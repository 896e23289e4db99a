"""The processes of leases, as the keeper names them: their owners are found from these."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from dgpu.agent.frames import Frame
from dgpu.agent.owners import ProcessOwners
from dgpu.agent.run.runner import RunOrder
from dgpu.agent.run.task_ports import TaskPorts
from dgpu.agent.run.worker_orders import WorkerAddress, own_uid
from dgpu.agent.tree import Survey
from dgpu.agent.worker_dirs import socket_of
from dgpu.core.model.ids import LeaseId


class LeaseProcesses:
    def __init__(self, worker_dir: str) -> None:
        self.worker_dir = worker_dir
        self._roots: dict[LeaseId, int] = {}  # pid of the first process of each lease that has not ended
        self._inner: dict[LeaseId, tuple[int, int]] = {}  # of containers: pid and start of the first process
        self._uids: dict[LeaseId, int] = {}  # of leases whose tasks run as users of their own
        self._workers: set[LeaseId] = set()
        self.ports = TaskPorts()
        self._owners = ProcessOwners()
        self._lock = threading.Lock()

    def greet(self, records: Iterable[dict[str, Any]]) -> None:
        """The full state of a keeper."""
        self._roots, self._inner = {}, {}
        records = tuple(records)
        self.ports.greet(records)
        for record in records:
            lease_id = LeaseId(record["lease"])
            if record.get("uid"):
                self._uids[lease_id] = record["uid"]
            if record.get("worker_silence_ms"):
                self._workers.add(lease_id)
            if record.get("pid") and "end" not in record:
                self._roots[lease_id] = record["pid"]
            if record.get("inner") and "end" not in record:
                self._inner[lease_id] = (record["inner"][0], record["inner"][1])

    def hear(self, frame: Frame) -> None:
        self._roots.update((LeaseId(lease), pid) for lease, pid in frame.get("pids", ()))
        self._inner.update((LeaseId(lease), (pid, ticks)) for lease, pid, ticks in frame.get("inner", ()))
        for entry in frame.get("ended", ()):
            self._roots.pop(LeaseId(entry["lease"]), None)
            self._inner.pop(LeaseId(entry["lease"]), None)
            self.ports.forget(LeaseId(entry["lease"]))

    def set_uid(self, lease_id: LeaseId, uid: int) -> None:
        self._uids[lease_id] = uid

    def ordered(self, order: RunOrder) -> None:
        if order.worker is not None:
            self._workers.add(order.lease_id)

    def is_worker(self, lease: int) -> bool:
        return LeaseId(lease) in self._workers

    def worker_address(self, lease_id: LeaseId) -> WorkerAddress | None:
        """None: no worker of this agent."""
        if lease_id not in self._workers:
            return None
        return WorkerAddress(socket_of(self.worker_dir, lease_id), own_uid(self._uids.get(lease_id)))

    def forget(self, lease_id: LeaseId) -> None:
        self._workers.discard(lease_id)
        for known in (self._roots, self._inner, self._uids):
            known.pop(lease_id, None)
        self.ports.forget(lease_id)

    def owners(self, *, keeper_pid: int, keeper_id: str) -> dict[int, LeaseId | None]:
        """Reads /proc: use a thread."""
        # Copied at once: the loop changes them meanwhile.
        roots, uids, inner = dict(self._roots), dict(self._uids), dict(self._inner)
        with self._lock:  # each node of an agent samples in its own thread
            return self._owners.look(
                Survey(), keeper_pid=keeper_pid, keeper_id=keeper_id, roots=roots, uids=uids, inner=inner
            )
