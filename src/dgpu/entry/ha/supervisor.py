"""Runs one etcd member and restarts it when it ends.

A member outlives a killed supervisor: the failover of the scheduler must not cost an election of the engine as well.
The next supervisor of the directory finds it by the file that it holds open and continues with it. A supervisor that
is asked to stop ends its member.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import structlog

from dgpu.entry.ha.care import MemberCare
from dgpu.entry.ha.errors import MemberRefused
from dgpu.entry.ha.etcd_program import find_etcd
from dgpu.entry.ha.member_command import member_command
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.member_machine import MemberMachine, Places, Refuse, Start, Wait, why_empty
from dgpu.entry.processes import (
    ProcessRef,
    Service,
    bound_log,
    command_line,
    holders,
    is_alive,
    set_aside,
    stop_process,
    tail,
)
from dgpu.journal.durable import make_folder
from dgpu.journal.errors import JournalLocked
from dgpu.journal.lock import FolderLock

_LOOK_S = 0.25
_LOG_LINES = 40

_log = structlog.get_logger("dgpu.ha")


class MemberSupervisor:
    """`start` and `stop` come from one thread; `refused` and `ref` may be read from any."""

    def __init__(self, directory: Path) -> None:
        self.files = MemberFiles(directory)
        self.member = self.files.member()
        self.refused = ""
        self.ref: ProcessRef | None = None
        self.changed = threading.Event()  # set at every start and refusal
        self._machine = MemberMachine(self._places)
        self._lock: FolderLock | None = None
        self._service: Service | None = None
        self._started_at_s = 0.0
        self._care = MemberCare(self.files)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-member", daemon=True)

    def start(self) -> None:
        """Raises MemberRefused. Returns before the member answers."""
        self._command = member_command(find_etcd(), self.files, self.member)
        if not self.files.has_certificate:
            raise MemberRefused(
                f"{self.files.tls} has no certificate for member {self.member.me}: dgpu ha join with a new token"
            )
        if self.member.started and not self.files.has_data:
            raise MemberRefused(why_empty(self._places))
        make_folder(self.files.folder)
        try:
            self._lock = FolderLock(self.files.folder)
        except JournalLocked as error:
            raise MemberRefused(f"{error}: it runs the member already") from error
        self._adopt()
        self._thread.start()
        self._care.start()

    def stop(self) -> None:
        """Ends the member. A stop during a start waits for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._care.stop()
            self._thread.join()
        if self.ref is not None:
            stop_process(self.ref)
        if self._service is not None:
            self._service.reap()
        if self._lock is not None:
            self._lock.close()

    def _adopt(self) -> None:
        """The member of a supervisor that was killed. One with other arguments is ended first."""
        for ref in holders(self.files.hold) if self.files.hold.exists() else ():
            if self.ref is None and _arguments(ref.pid) == self._command:
                self.ref, self._started_at_s = ref, time.monotonic()
                _log.info("member_adopted", member=self.member.me, pid=ref.pid)
                self.changed.set()
            else:
                stop_process(ref)
                _log.warning("member_ended", member=self.member.me, pid=ref.pid, reason="other settings")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                delay_s = self._look()
            except OSError as error:  # a full disk, too few processes
                _log.error("member_not_started", member=self.member.me, error=str(error))
                delay_s = self._machine.on_ended(time.monotonic(), ran_s=0, log_end="")
            self._stop.wait(min(delay_s, 1.0))

    def _look(self) -> float:
        bound_log(self.files.log)
        has_data = self.files.has_data
        if has_data:
            self.files.note_started()
        if self._service is not None or self.ref is not None:
            if self._is_running():
                return _LOOK_S
            self._note_end()
        once_started = self.files.member().started
        decision = self._machine.next(time.monotonic(), once_started=once_started, has_data=has_data)
        match decision:
            case Start():
                self._start_process()
                return _LOOK_S
            case Wait(seconds=seconds):
                return seconds
            case Refuse(why=why):
                if why != self.refused:
                    _log.error("member_refused", member=self.member.me, reason=why)
                self.refused = why
                self.changed.set()
                return 1.0

    def _is_running(self) -> bool:
        if self._service is not None:
            return self._service.is_running  # also collects its exit code
        return is_alive(self.ref)

    def _note_end(self) -> None:
        log_end = tail(self.files.log, _LOG_LINES)
        now_s = time.monotonic()
        delay_s = self._machine.on_ended(now_s, ran_s=now_s - self._started_at_s, log_end=log_end)
        code = self._service.exit_code if self._service is not None else None
        _log.warning("member_died", member=self.member.me, exit_code=code, restart_in_s=delay_s)
        self.ref, self._service = None, None

    def _start_process(self) -> None:
        make_folder(self.files.data)
        with contextlib.suppress(OSError):
            set_aside(self.files.log)  # the end of a log belongs to one process
        # No other variable: etcd reads ETCD_* and the addresses of proxies from its environment.
        service = Service(
            "member",
            self._command,
            self.files.log,
            {"PATH": os.environ.get("PATH", os.defpath)},
            self.files.hold,
        )
        service.start()
        self._service, self.ref, self._started_at_s = service, service.ref, time.monotonic()
        _log.info("member_started", member=self.member.me, pid=service.ref.pid if service.ref else 0)
        self.changed.set()

    @property
    def _places(self) -> Places:
        return Places(me=self.member.me, data=str(self.files.data), tls=str(self.files.tls))


def _arguments(pid: int) -> list[str]:
    try:
        content = command_line(pid)
    except OSError:
        return []
    return [part.decode("utf-8", "replace") for part in content.split(b"\0")[:-1]]
