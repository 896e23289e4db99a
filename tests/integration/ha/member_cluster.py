"""Directories of members on one machine, their processes, and questions to them."""

from __future__ import annotations

import os
import pathlib
import signal
import ssl
import subprocess
import sys
import time

import httpx
import msgspec
import pytest

from dgpu.agent.certificate import new_key, request_for
from dgpu.entry.chaos.ports import free_port
from dgpu.entry.ha.certificates import issue_own
from dgpu.entry.ha.member_files import MemberFiles
from dgpu.entry.ha.members import MemberAddress
from dgpu.entry.processes import holders, is_alive, stop_process
from dgpu.service.machines.authority import load_authority
from dgpu.service.machines.member_marker import Member

PATIENCE_S = 90


def eventually(condition, what: str):
    """Waits for a fact, never for a time; the bound is only there to end a broken run."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"waited {PATIENCE_S} s in vain for {what}")
        time.sleep(0.05)


class MemberCluster:
    """Three members that know each other from the start, each with a `dgpu witness` of its own."""

    def __init__(self, home: pathlib.Path) -> None:
        self.home = home
        self.names = ("a", "b", "c")
        self.addresses = {name: f"127.0.0.1:{free_port(following=1)}" for name in self.names}
        self.witnesses: dict[str, subprocess.Popen[bytes]] = {}
        issue_own(self.directory("a"), MemberAddress.parse(self.addresses["a"]))
        for name in self.names:
            self._prepare(name)

    def directory(self, name: str) -> pathlib.Path:
        return self.home / name

    def files(self, name: str) -> MemberFiles:
        return MemberFiles(self.directory(name))

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "dgpu", "witness", "--dir", str(self.directory(name))]
        with (self.home / f"{name}.log").open("ab") as log:
            self.witnesses[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def member_pids(self, name: str) -> list[int]:
        hold = self.files(name).hold
        return [ref.pid for ref in holders(hold)] if hold.exists() else []

    def member_pid(self, name: str) -> int:
        return eventually(lambda: self.member_pids(name), f"the process of member {name}")[0]

    def kill_member(self, name: str) -> int:
        pid = self.member_pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_witness(self, name: str) -> None:
        self.witnesses[name].kill()
        self.witnesses[name].wait()

    def stop(self, name: str) -> int:
        witness = self.witnesses[name]
        witness.send_signal(signal.SIGTERM)
        return witness.wait(PATIENCE_S)

    def healthy(self, name: str) -> bool:
        """A member says so only if it knows a leader of a majority."""
        try:
            answer = self.get(name, "/health")
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and answer.json() == {"health": "true"}

    def get(self, name: str, path: str, certificate_of: MemberFiles | None = None) -> httpx.Response:
        files = certificate_of or self.files(name)
        tls = ssl.create_default_context(cafile=self.files("a").authority)
        tls.load_cert_chain(files.certificate, files.key)
        return httpx.get(f"https://{self.addresses[name]}{path}", verify=tls, timeout=10, trust_env=False)

    def close(self) -> None:
        for name, witness in self.witnesses.items():
            if witness.poll() is None:
                witness.kill()
                witness.wait()
            for ref in holders(self.files(name).hold) if self.files(name).hold.exists() else ():
                stop_process(ref, 1)
                eventually(lambda ref=ref: not is_alive(ref), "the end of a member")

    def _prepare(self, name: str) -> None:
        files, me = self.files(name), self.addresses[name]
        if not files.has_certificate:
            authority = load_authority(self.directory("a"))
            key = new_key()
            issued = authority.issue_member(request_for(key), "127.0.0.1", now_s=int(time.time()))
            files.write_certificate(
                key_pem=key, certificate_pem=issued.certificate_pem, authority_pem=authority.certificate_pem
            )
        everyone = tuple(self.addresses.values())
        files.write(
            Member(
                cluster="0123", role="witness", me=me, members=everyone, first_peers=everyone, is_first=True
            )
        )

    def change(self, name: str, **fields) -> None:
        files = self.files(name)
        files.write(msgspec.structs.replace(files.member(), **fields))
