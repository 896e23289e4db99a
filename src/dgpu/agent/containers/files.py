"""Output files of a container: opened before it runs, in its directory and with the rights of its user.

Standard library only. The runner has the rights of the keeper, so a child of it opens the files.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from dgpu.agent.output_files import OutputFiles, send_files
from dgpu.agent.spawn import CannotStart


class FilesRefused(Exception):  # noqa: N818 - the name states the failure
    """One line for people."""


def send_container_files(spec: dict[str, Any], link_fd: int) -> None:
    """Raises FilesRefused and OSError."""
    with socket.socket(fileno=link_fd) as link:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _be_child(spec, link, write_end)
        os.close(write_end)
    with open(read_end, "rb") as told:  # noqa: PTH123 - a pipe
        answer = told.read()
    os.waitpid(pid, 0)
    if not answer:
        raise FilesRefused("the output files of the container could not be opened")
    if error := json.loads(answer)["error"]:
        raise FilesRefused(error)


def _be_child(spec: dict[str, Any], link: socket.socket, told: int) -> None:
    try:
        error = _opened(spec, link)
    except OSError as failure:
        error = f"output files: {failure.strerror}"
    except BaseException as failure:  # noqa: BLE001 - the last line of the process
        error = f"output files: {failure}"
    finally:
        os.write(told, json.dumps({"error": error}).encode())
        os._exit(0)


def _opened(spec: dict[str, Any], link: socket.socket) -> str:
    os.chdir(spec["dir"])  # first: the user of the container may not pass the directories of the agent
    if os.geteuid() == 0:
        uid, _, gid = spec["user"].partition(":")
        os.setgroups([])
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
    os.umask(0o022)
    refusal: CannotStart | None = send_files(OutputFiles(*spec["files"]), link)
    return refusal.error if refusal is not None else ""
