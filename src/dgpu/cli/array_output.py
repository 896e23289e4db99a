"""Output of the tasks of an array: one after another, or followed, with the index before each line."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dgpu.cli.arrays import result
from dgpu.cli.connection import builtins, is_final, patiently, poll, task_code
from dgpu.cli.failures import ExitCode, note, translated
from dgpu.cli.following import OutputFollower

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

MAX_SHOWN = 100  # tasks, one after another on a terminal; in a pipe all of them
MAX_FOLLOWED = 16  # tasks at once; the others follow as these end
_LOOK_SECONDS = 0.5
_PAGE = 500
_MAX_LINE_BYTES = 65_536  # a longer line is shown in parts

Write = Callable[[bytes], None]
NOTHING: Mapping[str, Any] = {}


def show_outputs(
    client: Client,
    array: TaskAnswer,
    write: Callable[[], Write],
    tail: int | None,
    chosen: Mapping[str, Any] = NOTHING,
) -> None:
    """The tasks that have started, by id, each below a heading; on a terminal only the first ones.

    `chosen`: further arguments of Client.stream_logs.
    """
    number = array.task_id.removeprefix("task-")
    shown = 0
    for task in started(client, array.task_id, "running,success,failed,cancelled"):
        if shown == MAX_SHOWN and sys.stdout.isatty():
            note(f"… and more. The output of one task: dgpu logs {number}_INDEX")
            return
        put = write()
        gap = "\n" if shown else ""
        put(f"{gap}==> {number}_{task.array_index} ({_state(task)}) <==\n".encode())
        _copy(client, task, put, {**chosen, "tail": tail})
        shown += 1
    if not shown:
        note(f"No task of {array.task_id} has started.")


def _copy(client: Client, task: TaskAnswer, put: Write, chosen: Mapping[str, Any]) -> None:
    """Ends with a line break. The lost output of one task does not hide that of the others."""
    last = b"\n"
    try:
        for piece in client.stream_logs(task.task_id, **chosen):
            put(piece)
            last = piece[-1:] or last
    except Exception as error:
        failure = translated(error)
        if failure is None or failure.exit_code != ExitCode.NOT_FOUND:
            raise
        put(f"[dgpu: {failure.message}]\n".encode())
        return
    if last != b"\n":
        put(b"\n")


def follow_outputs(
    client: Client,
    array: TaskAnswer,
    write: Callable[[], Write],
    tail: int | None,
    chosen: Mapping[str, Any] = NOTHING,
) -> TaskAnswer:
    """Until all tasks have ended. Returns the array."""
    followers, array_id = _Followers(client, write, tail, chosen), array.task_id
    while True:
        array = patiently(lambda: client.get(array_id))
        is_over = is_final(array)
        # Tasks that began and ended between two looks are found at the end.
        states = "success,failed,cancelled,running" if is_over else "running"
        for task in patiently(lambda states=states: list(started(client, array_id, states))):  # type: ignore[misc]
            followers.add(task)
        if is_over:
            followers.finish()
            return array
        followers.check()
        time.sleep(_LOOK_SECONDS)


def run_array(client: Client, array_id: str, write: Callable[[], Write]) -> int:
    """For `run`: follows a submitted array and returns its exit code. Ctrl-C cancels it."""
    try:
        ended = follow_outputs(client, client.get(array_id), write, None)
    except KeyboardInterrupt:
        note(f"\ndgpu: cancelling {array_id}")
        try:
            patiently(lambda: client.cancel(array_id))
            poll(client, array_id, is_final)
        except KeyboardInterrupt:
            note(f"dgpu: not waiting for its end; see: dgpu show {array_id}")
        return ExitCode.INTERRUPTED
    if ended.array is not None and ended.array.success < ended.array.count:
        note(f"dgpu: {array_id}: {result(builtins(ended))}")
    return task_code(ended)


def started(client: Client, array_id: str, states: str) -> Iterator[TaskAnswer]:
    found = client.list(page_size=_PAGE, array=array_id, status=states, sort="oldest")
    return (task for task in found if task.attempt)


def _state(task: TaskAnswer) -> str:
    return f"exit code {task.exit_code}" if task.exit_code else task.status


class _Followers:
    """Threads that copy output. They end with the process, whatever they wait for."""

    def __init__(
        self, client: Client, write: Callable[[], Write], tail: int | None, chosen: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._chosen = chosen
        self._write = write
        self._tail = tail
        self._lock = threading.Lock()
        self._known: set[tuple[str, int]] = set()
        self._left: queue.SimpleQueue[TaskAnswer | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def add(self, task: TaskAnswer) -> None:
        if (task.task_id, task.attempt) in self._known:
            return
        self._known.add((task.task_id, task.attempt))
        self._left.put(task)
        if len(self._threads) < min(MAX_FOLLOWED, len(self._known)):
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()

    def check(self) -> None:
        """Raises the failure of a thread, such as a reader that left."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        for _ in self._threads:
            self._left.put(None)
        for thread in self._threads:
            while thread.is_alive() and self._failure is None:
                thread.join(_LOOK_SECONDS)
        self.check()

    def _work(self) -> None:
        while (task := self._left.get()) is not None and self._failure is None:
            lines = PrefixedLines(f"[{task.array_index}] ".encode(), self._write(), self._lock)
            try:
                OutputFollower(
                    self._client,
                    task.task_id,
                    task.attempt,
                    tail=self._tail,
                    write=lines.feed,
                    chosen=self._chosen,
                ).follow()
                lines.end()
            except Exception as error:  # noqa: BLE001 - the main thread raises it
                self._failure = error
                return


class PrefixedLines:
    """Whole lines only, so that lines of several tasks do not mix."""

    def __init__(self, prefix: bytes, write: Write, lock: threading.Lock) -> None:
        self._prefix = prefix
        self._write = write
        self._lock = lock
        self._begun = b""

    def feed(self, piece: bytes) -> None:
        *lines, self._begun = (self._begun + piece).split(b"\n")
        if len(self._begun) > _MAX_LINE_BYTES:
            lines, self._begun = [*lines, self._begun], b""
        if lines:
            self._put(lines)

    def end(self) -> None:
        if self._begun:
            self._put([self._begun])
            self._begun = b""

    def _put(self, lines: list[bytes]) -> None:
        with self._lock:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))
