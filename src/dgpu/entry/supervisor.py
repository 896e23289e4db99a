"""Keeps the two services of `up` running and their record up to date."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime

from dgpu import __version__
from dgpu.entry.ask import ask
from dgpu.entry.processes import Service, bound_log, process_ref
from dgpu.entry.stack import SchedulerDied, Stack, StartFailed, free_port
from dgpu.entry.state_dir import UpRecord

DRAINED_BY_DOWN = "stopped by dgpu down --stop-tasks"
_QUICK_SECONDS = 60.0  # a service that ran longer resets its count of deaths
_MAX_QUICK_DEATHS = 10
_LONGEST_DELAY_SECONDS = 30.0
_LONGEST_DELAY_AFTER_KILL_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_START_ATTEMPTS = 3
_CANCEL_SECONDS = 30.0


class StopSignals:
    """Waits for SIGINT, SIGTERM and SIGHUP; the end of a child also ends the wait."""

    def __init__(self) -> None:
        self.received = False
        self._reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._keep)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _keep(self, *_: object) -> None:
        self.received = True

    def wait(self, seconds: float) -> None:
        select.select([self._reading], [], [], seconds)
        try:
            os.read(self._reading, 4096)
        except BlockingIOError:
            return


class Supervisor:
    def __init__(self, stack: Stack, signals: StopSignals, say: Callable[[str], None]) -> None:
        self.stack = stack
        self._signals = signals
        self._say = say
        self._deaths = {"scheduler": 0, "agent": 0}
        self._restart_at: dict[str, float] = {}
        self._is_recorded = True
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        stack.should_stop = lambda: signals.received

    def start(self) -> None:
        """Another program may take a port between the check and its use; then another port is chosen."""
        wanted_http, wanted_grpc = self.stack.http_port, self.stack.grpc_port
        for attempt in range(_START_ATTEMPTS):
            self.stack.http_port = free_port(wanted_http)
            self.stack.grpc_port = free_port(wanted_grpc, taken=self.stack.http_port)
            self.stack.prepare()
            self._record(ready=False)
            try:
                self.stack.start_scheduler()
                break
            except StartFailed:
                self.stack.stop()
                if attempt + 1 == _START_ATTEMPTS or not self._ports_taken():
                    raise
        for name, wanted, used in (
            ("HTTP", wanted_http, self.stack.http_port),
            ("gRPC", wanted_grpc, self.stack.grpc_port),
        ):
            if wanted not in {0, used}:
                self._say(f"Port {wanted} ({name}) is in use by another program; using {used}.")
        self._record(ready=False)
        self._cancel_stopped()
        self._start_agent()
        self._resume_drained()
        self._record(ready=False)

    def _start_agent(self) -> None:
        """Restarts a scheduler that ends meanwhile, a few times."""
        for _ in range(_START_ATTEMPTS - 1):
            with contextlib.suppress(SchedulerDied):
                self.stack.start_agent()
                return
            how = _how(self.stack.scheduler.exit_code)
            self._say(
                f"The scheduler ended unexpectedly ({how}) while the agent was starting; restarting it."
            )
            self.stack.start_scheduler()
            self._record(ready=False)
        self.stack.start_agent()

    def tell_ready(self) -> None:
        """Written last: a process that waits for the record may read everything announced before."""
        self._record(ready=True)

    def _ports_taken(self) -> bool:
        ports = (self.stack.http_port, self.stack.grpc_port)
        return any(free_port(port) != port for port in ports)

    def _cancel_stopped(self) -> None:
        """Cancels the tasks before the agent reports their ends, which would requeue them."""
        url, stopped = self.stack.url, self.stack.state_dir.stopped_tasks()
        for task_id in stopped:
            answer = ask(url, f"/api/v1/tasks/{task_id}", method="DELETE", timeout_seconds=_CANCEL_SECONDS)
            # 404 and 409: the task is unknown or has ended, so there is nothing to cancel.
            if answer is None or answer.status not in {200, 202, 204, 404, 409}:
                raise StartFailed(
                    f"{task_id} was stopped by dgpu down --stop-tasks and could not be cancelled "
                    f"({answer.status if answer else 'no answer'}). Try again."
                )
        if stopped:
            self.stack.state_dir.forget_stopped()

    def _resume_drained(self) -> None:
        answer = ask(self.stack.url, "/api/v1/nodes")
        for node in (answer.body or {}).get("nodes", ()) if answer else ():
            if node.get("drain_reason") == DRAINED_BY_DOWN:
                ask(self.stack.url, f"/api/v1/nodes/{node['id']}/resume", method="POST", body={})

    def watch(self) -> int:
        """Runs until a signal (0), or until a service dies repeatedly (1)."""
        while not self._signals.received:
            for service in (self.stack.scheduler, self.stack.agent):
                bound_log(service.log_file)
                if not service.is_running and not self._restarted(service):
                    return 1
            if not self._is_recorded:
                self._record_if_possible()
            self._signals.wait(_LOOK_SECONDS)
        return 0

    def _restarted(self, service: Service) -> bool:
        """False: it died too often."""
        name = service.name
        due = self._restart_at.get(name)
        if due is None:
            quick = service.uptime_seconds < _QUICK_SECONDS
            self._deaths[name] = self._deaths[name] + 1 if quick else 1
            # A kill by a signal comes from outside and is no sign of a broken start: it does not count.
            killed = (service.exit_code or 0) < 0
            if self._deaths[name] > _MAX_QUICK_DEATHS and not killed:
                self._say(
                    f"The {name} died {_MAX_QUICK_DEATHS} times in a row; giving up. Its log ends with:"
                )
                self._say(service.tail())
                return False
            longest = _LONGEST_DELAY_AFTER_KILL_SECONDS if killed else _LONGEST_DELAY_SECONDS
            delay = min(longest, 0.25 * 2 ** (self._deaths[name] - 1))
            self._restart_at[name] = time.monotonic() + delay
            self._say(
                f"The {name} ended unexpectedly ({_how(service.exit_code)}); restarting it in {delay:g} s."
            )
        elif time.monotonic() >= due:
            del self._restart_at[name]
            service.start()
            self._record_if_possible()
        return True

    def _record_if_possible(self) -> None:
        """A full disk must not end the services: the earlier record stays until there is room."""
        try:
            self._record(ready=True)
        except OSError as error:
            if self._is_recorded:
                self._say(f"The record of what runs could not be written ({error.strerror}); trying again.")
            self._is_recorded = False
        else:
            self._is_recorded = True

    def _record(self, *, ready: bool) -> None:
        stack = self.stack
        stack.state_dir.write_record(
            UpRecord(
                url=stack.url,
                token_file=str(stack.state_dir.token_file),
                grpc_address=stack.grpc_address,
                version=__version__,
                started_at=self._started_at,
                ready=ready,
                pid=os.getpid(),
                supervisor=process_ref(os.getpid()),
                scheduler=stack.scheduler.ref,
                agent=stack.agent.ref,
                nodes=stack.cards.nodes,
                gpus=stack.cards.words,
            )
        )


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "running"
    if exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"
