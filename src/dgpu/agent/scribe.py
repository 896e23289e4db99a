"""Does all disk work for the keeper, in a separate process, so that a hanging disk does not stop the keeper.

Standard library only. It keeps the lease log, creates the directories of tasks, reads their pipes and writes their
output. The guard starts it together with the keeper and ends both together. Requests arrive in order over a socket; see
`scribe_link` for the frames.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.disk_room import DiskRoom
from dgpu.agent.frames import Decoder, Frame, encode
from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.marks import FILES
from dgpu.agent.pipes import Pipes
from dgpu.agent.scribe_link import MAX_DESCRIPTORS
from dgpu.agent.secret_dirs import SecretDirs, secrets_dir_of
from dgpu.agent.store import LeaseLog, Record
from dgpu.agent.workdirs import WorkDirs
from dgpu.agent.worker_dirs import worker_dir_of
from dgpu.file_limit import raise_file_limit

_READ_BYTES = 256 * 1024


class Scribe:
    def __init__(self, settings: KeeperSettings, log: LeaseLog, link: socket.socket) -> None:
        self._output_dir = settings.output_dir
        self._cap_bytes = settings.output_cap_bytes
        self._log = log
        self._link = link
        self._room = DiskRoom((settings.directory, settings.work_dir))
        self._work_dirs = WorkDirs(Path(settings.work_dir))
        self._secret_dirs = SecretDirs(secrets_dir_of(settings))
        self._worker_dirs = SecretDirs(worker_dir_of(settings.directory, settings.work_dir))
        self._epoll = select.epoll()
        self._epoll.register(link, select.EPOLLIN)
        self._pipes = Pipes(self._epoll)
        self._decoder = Decoder()
        self._descriptors: list[int] = []  # received with frames that are not served yet

    def run(self) -> None:
        """Runs until the keeper has ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        raise_file_limit()
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._link.fileno():
                    if not self._serve_link():
                        return
                else:
                    self._pipes.serve(fd)

    def _serve_link(self) -> bool:
        try:
            received, descriptors, _, _ = socket.recv_fds(self._link, _READ_BYTES, MAX_DESCRIPTORS)
        except OSError:
            return False
        if not received:
            return False
        self._descriptors += descriptors
        for frame in self._decoder.feed(received):
            if answer := self._obey(frame):
                try:
                    self._link.sendall(encode(answer))
                except OSError:
                    return False
        return True

    def _obey(self, frame: Frame) -> Frame:
        answer: Frame = {}
        for lease, stream in frame.get("output", ()):
            if stream == FILES:
                self._pipes.open_files(lease, self._descriptors.pop(0))
                continue
            writer = self._pipes.output_of(lease)
            if writer is None:
                writer = ChunkWriter(Path(f"{self._output_dir}/{lease:d}"), self._cap_bytes)
            self._pipes.open(lease, self._descriptors.pop(0), writer, stream)
        if "end" in frame:
            answer["recorded"] = self._end(frame["end"])
        if "forget" in frame:
            self._log.forget(frame["forget"])
        if "begin" in frame:
            answer["begun"] = self._begin(frame)
        if "ping" in frame:
            answer["pong"] = frame["ping"]
        return answer

    def _end(self, ends: list[list[Any]]) -> list[list[Any]]:
        """Adds the size of the output to each end, then writes all ends."""
        whole: dict[int, Record] = {}
        for lease, end, reusable in ends:
            self._work_dirs.give_back(lease, reusable=reusable)
            self._secret_dirs.remove(lease)
            self._worker_dirs.remove(lease)
            whole[lease] = end | self._pipes.close(lease)
        self._log.end(whole)
        return list(map(list, whole.items()))

    def _begin(self, asked: Frame) -> Frame:
        """An error concerns the whole batch: none of its orders may start."""
        if self._room.is_full():
            return {"full": True}
        try:
            self._log.begin(asked["begin"])
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return {"full": True}
            return {"error": f"cannot write a record: {error.strerror}"}
        made: list[list[Any]] = []
        for lease, name, tmp_name, owner, staged in asked["dirs"]:
            try:
                account = tuple(owner) if owner else None
                path = self._work_dirs.take(lease, name, account, staged) if name else ""
                if tmp_name:
                    self._work_dirs.take(lease, tmp_name, account)
                made.append([lease, path, ""])
            except OSError as error:
                made.append([lease, "", error.strerror])
        written: list[list[Any]] = []
        for lease, owner in asked.get("workers", ()):
            try:
                self._worker_dirs.make(lease, tuple(owner) if owner else None)
            except OSError as error:
                written.append([lease, "", f"directory of its socket: {error.strerror}"])
        for lease, files, owner in asked.get("secrets", ()):
            try:
                path = self._secret_dirs.write(lease, files, tuple(owner) if owner else None)
                written.append([lease, path, ""])
            except OSError as error:
                written.append([lease, "", error.strerror])
        return {"dirs": made, "secrets": written}


def be_scribe(settings: KeeperSettings, log: LeaseLog, link: socket.socket) -> None:
    """The main function of the process. Does not return."""
    code = 1
    try:
        os.chdir("/")
        Scribe(settings, log, link).run()
        code = 0
    except BaseException:  # noqa: BLE001 - the last line of the process: say it, then end
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        os._exit(code)
