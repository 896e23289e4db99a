"""docs/cluster.md, step by step: three agents on an address of this machine that is not loopback."""

from __future__ import annotations

import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

from dgpu.entry.chaos.ports import free_port
from dgpu.entry.keepers import end_keepers
from e2e.conftest import PATIENCE_SECONDS, eventually
from e2e.doc_commands import ROOT
from e2e.test_first_hour import SECRET, Person, own_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK = re.compile(r"^```(yaml|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MACHINES = ("gpu1", "gpu2", "gpu3")


def blocks() -> list[tuple[str, str]]:
    """Kind and text, from step 2 on: this test's environment is what step 1 installs."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    return [(kind, text) for kind, text in BLOCK.findall(page[page.index("## 2.") :])]


class Walk:
    """Types the page. Only addresses, ports and directories differ from it."""

    def __init__(self, host: str) -> None:
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-walk-"))  # short, for Unix sockets
        ports = {str(port): str(free_port()) for port in (8080, 9090, 9091)}
        self.changes = {
            "gpu1.example.org": host,
            **{f":{old}": f":{new}" for old, new in ports.items()},
            "/etc/dgpu": f"{self.home}/etc",
        }
        (self.home / "etc").mkdir()
        env = {
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
            "NO_COLOR": "1",
            "DGPU__STORAGE__SNAPSHOT_DIR": f"{self.home}/state",
            "DGPU__SERVER__JOIN_ADDRESS": f":{ports['9091']}",
            "DGPU__GPU__DETECTION_METHOD": "simulated",
            "DGPU__GPU__SIMULATED": "2xV100",
        }
        self.person = Person(self.home, env, f"https://{host}:{ports['8080']}")
        self.services: list[subprocess.Popen[str]] = []
        self.first_token = self.invitation = ""

    def here(self, text: str) -> str:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text.replace("dgpuj_…", self.invitation)

    def write(self, text: str) -> None:
        path = pathlib.Path(self.here(text.splitlines()[0].removeprefix("# ")))
        path.write_text(self.here(text))

    def type(self, text: str, node: str = "") -> str:
        """`node`: the directory of this node is used."""
        at = f"DGPU__EXECUTOR__WORK_DIR={self.home}/{node} " if node else ""
        answer = self.person.types(at + self.here(text))
        assert answer.code == 0, f"{text}\n{answer}"
        return answer.out

    def serve(self, text: str, name: str) -> None:
        """A command that does not return. It has a directory for its node."""
        process = subprocess.Popen(
            ["bash", "-c", "exec " + self.here(text)],
            env={**self.person.env, "DGPU__EXECUTOR__WORK_DIR": f"{self.home}/{name}"},
            cwd=self.person.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.services.append(process)
        if name == "scheduler":
            shown = (SECRET.search(line) for line in process.stdout)
            self.first_token = next(found[0] for found in shown if found)

    def join(self, name: str, config: str, console: str) -> None:
        """Step 3 on one machine."""
        invite = f"dgpu ca token --config /etc/dgpu/scheduler.yaml --node {name}"
        self.invitation = self.invitation or self.type(invite).strip()
        here = {"/etc/dgpu/agent.yaml": f"{self.home}/etc/{name}.yaml", "id: gpu1": f"id: {name}"}
        for old, new in here.items():
            config, console = config.replace(old, new), console.replace(old, new)
        self.write(config)
        join, agent = (line[2:] for line in console.splitlines())
        self.type(join, name)
        self.serve(agent, name)
        self.invitation = ""

    def close(self) -> None:
        for process in reversed(self.services):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_SECONDS)
        for name in MACHINES:
            end_keepers(self.home / name)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def walk():
    host = own_address()
    if host is None:
        pytest.skip("this machine has no address but loopback")
    place = Walk(host)
    yield place
    place.close()


def lines(console: str) -> list[str]:
    return [line[2:] for line in console.splitlines() if line.startswith(("# ", "$ "))]


def test_the_page_leads_to_a_cluster_of_three_machines(walk):
    [(_, scheduler), (_, start), (_, invite), (_, agent), (_, join), (_, admin), (_, user), (_, units)] = (
        blocks()
    )
    walk.write(scheduler)
    init, serve = lines(start)
    walk.type(init)
    walk.serve(serve, "scheduler")
    certificate, token = lines(invite)
    walk.type(certificate)
    walk.invitation = walk.type(token).strip()
    for name in MACHINES:
        walk.join(name, agent, join)
    export, login, nodes, create = lines(admin)
    variables = dict(word.split("=", 1) for word in walk.here(export).split()[1:])
    walk.person.env |= variables | {"SSL_CERT_FILE": str(walk.person.home / "dgpu-ca.pem")}
    walk.type(f"echo {walk.first_token} | {login}")
    eventually(
        lambda: len(re.findall(r"^gpu[123] +ready", walk.type(nodes), re.MULTILINE)) == 3, "three ready nodes"
    )
    ann = walk.type(create).split()[-1]
    walk.type(f"echo {ann} | {login}")
    assert "ann" in walk.type("dgpu whoami")
    typed = [walk.type(text) for text in lines(user)]
    assert typed[2] == "trained\n"
    assert "train.py" in typed[3]
    walk.write(agent)
    for text in lines(units):
        assert "ExecStart" in walk.type(f"{text} --print")
