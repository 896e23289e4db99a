"""The commands of the first hour, word for word: on one machine, and on three nodes that are not on loopback."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from e2e.conftest import Answer
from e2e.doc_commands import commands
from e2e.tls_cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = {
    "train.py": "import sys; open(sys.argv[2], 'w').write('weights') if '--out' in sys.argv else print('trained')\n",
    "evaluate.py": "print('evaluated')\n",
    "sweep.py": "import os; print('index', os.environ['DGPU_ARRAY_INDEX'])\n",
    "serve.py": "print('served')\n",
    "evaluate": "#!/bin/sh\necho accuracy 0.9\n",
    "torchrun": '#!/bin/sh\nexec python "$@"\n',
    "job.sh": "#!/bin/sh\necho job\n",
    "train.sh": "#!/bin/sh\necho train\n",
}
# A task for two nodes with eight GPUs each can never run on one machine with four.
REFUSED_ON_ONE_MACHINE = {"dgpu submit -G 8 --nodes 2 -- torchrun train.py": 6}


SECRET = re.compile(r"dgpu_[a-z2-7]{12}_[A-Za-z0-9_-]{43}")


class Person:
    """Types commands in a directory with some programs."""

    def __init__(self, home: pathlib.Path, env: dict[str, str], url: str = "http://localhost:8080") -> None:
        self.home = home / "project"
        self.home.mkdir()
        for name, text in PROGRAMS.items():
            (self.home / name).write_text(text)
            (self.home / name).chmod(0o755)
        bin_dir = pathlib.Path(sys.executable).parent
        path = f"{self.home}:{bin_dir}:{os.environ['PATH']}"
        # Without these, `dgpu dashboard` and `dgpu top` would wait for a person.
        self.env = {**env, "PATH": path, "BROWSER": "true", "TERM": "dumb"}
        self.url = url
        self.has_seven_tasks = False  # the pages speak of task 7

    def types(self, text: str) -> Answer:
        """Only the address differs from the page: the port of this test is its own."""
        written = text.replace("localhost:8080", self.url)
        done = subprocess.run(
            ["bash", "-c", written],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Answer(done)


def first_hour() -> list[str]:
    """Without `make`, which made the environment of this test, and without `down`: the later commands need dgpu."""
    printed = commands("README.md", "Use it on your machine", "Watch it", "From programs")
    texts = [command.text for command in printed]
    return [text for text in texts if not text.startswith(("make ", "dgpu down"))]


def plain(text: str) -> str:
    return text.partition("#")[0].strip()


def without_a_terminal(text: str) -> str:
    return text.replace("dgpu top", "dgpu top --once")


def type_all(person: Person, texts: list[str], codes: dict[str, int]) -> None:
    for text in texts:
        if " 7" in text and not person.has_seven_tasks:
            assert person.types("for i in 1 2 3 4 5 6 7; do dgpu submit -- true; done").code == 0
            person.has_seven_tasks = True
        answer = person.types(without_a_terminal(text))
        assert answer.code == codes.get(plain(text), 0), f"$ {text}\n{answer}"


def test_on_one_machine(site):
    person = Person(site.home, site.env)
    up, *rest = first_hour()
    assert len(rest) >= 19
    assert plain(up) == "dgpu up --detach"
    assert person.types(up).code == 0
    person.url = site.record["url"].removeprefix("http://")
    type_all(person, rest, REFUSED_ON_ONE_MACHINE)
    assert person.types("dgpu down").code == 0


def own_address() -> str | None:
    """An address of this machine that is not loopback. Nothing is sent: the kernel only chooses a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


@pytest.fixture
def cluster():
    host = own_address()
    if host is None:
        pytest.skip("this machine has no address but loopback")
    place = Cluster(host=host, gpus="8xV100", http_tls="ca")
    yield place
    place.close()


def test_on_three_nodes_that_are_not_on_loopback(cluster):
    authority = cluster.home / "dgpu-ca.pem"
    cluster.ca("init")
    authority.write_text(cluster.ca("certificate").out)
    url = f"https://{cluster.host}:{cluster.http}"
    cluster.env |= {"SSL_CERT_FILE": str(authority), "DGPU_SERVER": url}
    cluster.start("scheduler", stdout=subprocess.PIPE)
    shown = cluster.services["scheduler"].stdout
    token = next(found[0] for line in shown if (found := SECRET.search(line.decode())))
    cluster.env["DGPU_TOKEN"] = token
    for name in ("n1", "n2", "n3"):
        cluster.add(name)
        assert cluster.join(name, cluster.token(name)).code == 0
        cluster.start(name)
    for name in ("n1", "n2", "n3"):
        cluster.is_ready(name)
    (cluster.home / ".curlrc").write_text(
        f'header = "Authorization: Bearer {token}"\ncacert = "{authority}"\n'
    )
    type_all(Person(cluster.home, cluster.env, url), first_hour()[1:], {})
