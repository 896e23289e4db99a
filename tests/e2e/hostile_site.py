"""One machine with two tenants as Unix users: ann of tenant a, who has secrets, and bob of tenant b, who is hostile."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

import pytest

from .conftest import Site, eventually
from .test_isolation import isolated_site

WORD = "plumword"  # part of everything that is ann's own
SECRET, VARIABLE = f"{WORD}-of-the-secret", f"{WORD}-of-the-variable"
TASK = {
    "name": f"{WORD}-of-the-name",
    "labels": {"project": f"{WORD}-of-the-label"},
    "env": {"VARIABLE": VARIABLE},
    "secrets": {"KEY": {"file": "key"}},
    "gpu_count": 1,
    "command": [
        "sh",
        "-c",
        f"echo pid $$; echo {WORD}-of-the-output; echo {WORD}-of-the-file > file; touch $TMPDIR/mine; sleep 1000",
    ],
}
KEY = "the-same-key"  # of idempotency
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin")

needs_two_users = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root runs tasks as other users"),
    pytest.mark.skipif(
        PYTHON is None, reason="needs a Python of the system: other users cannot run one in /root"
    ),
]


class Reply(NamedTuple):
    status: int
    body: bytes
    kind: str
    is_not_sniffed: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json.get("code", "") if self.kind.startswith("application/") else ""


class Person:
    """Somebody with a token and no other rights."""

    def __init__(self, site: Site, user: str, tenant: str) -> None:
        self.site, self.user, self.tenant = site, user, tenant
        self.token = site.good("token", "create", "laptop", "--user", user, "--tenant", tenant).out.strip()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """The path is sent as it is."""
        parts = urllib.parse.urlsplit(self.site.record["url"])
        told = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        content = None if body is None else json.dumps(body)
        with contextlib.closing(
            http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        ) as connection:
            connection.request(method, path, content, told)
            answer = connection.getresponse()
            kind, sniffing = (
                answer.headers.get(name, "") for name in ("content-type", "x-content-type-options")
            )
            return Reply(answer.status, answer.read(), kind, sniffing == "nosniff")

    def submit(self, script: str = "", *, key: str = "", **fields: Any) -> str:
        task = {"tenant_id": self.tenant, "gpu_count": 0, "command": ["sh", "-c", script], **fields}
        answer = self.ask("POST", "/api/v1/tasks", task, **({"idempotency-key": key} if key else {}))
        assert answer.status == 201, answer
        return answer.json["task_id"]

    def output(self, task: str) -> str:
        answer = self.ask("GET", f"/api/v1/tasks/{task}/logs")
        return answer.body.decode(errors="replace") if answer.status == 200 else ""

    def run(self, script: str, **fields: Any) -> str:
        """The output of a task that ends."""
        task = self.submit(script, **fields)
        eventually(
            lambda: self.ask("GET", f"/api/v1/tasks/{task}").json["status"] in {"success", "failed"},
            f"the end of {task} of {self.user}",
        )
        return self.output(task)

    def python(self, program: str, *arguments: object, **fields: Any) -> str:
        """The output of a Python program in a task."""
        return self.run(python_line(program, *arguments), **fields)


class Hostile(NamedTuple):
    site: Site
    tasks_dir: pathlib.Path
    ann: Person
    bob: Person
    task: str  # of ann, running
    pid: int  # of its first process

    @property
    def environ(self) -> dict[str, str]:
        """Of ann's task."""
        content = pathlib.Path(f"/proc/{self.pid}/environ").read_text()
        return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)

    def entries(self, **wanted: str) -> list[dict[str, Any]]:
        """Refused attempts in the audit log. `wanted`: values of fields."""
        url = f"{self.site.record['url']}/api/v1/audit?result=refused&limit=1000"
        with urllib.request.urlopen(url, timeout=60) as answer:  # as root, who is admin
            entries = json.load(answer)["entries"]
        return [entry for entry in entries if all(entry[name] == value for name, value in wanted.items())]

    def refusals(self, **wanted: str) -> collections.Counter[tuple[str, str]]:
        """Number of refused attempts, by action and code."""
        found: collections.Counter[tuple[str, str]] = collections.Counter()
        for entry in self.entries(**wanted):
            found[entry["action"], entry["code"]] += entry["count"]
        return found

    def unharmed(self) -> None:
        """Ann's task runs on, as it was."""
        assert pathlib.Path(f"/proc/{self.pid}").exists()
        found = self.site.task(self.task)
        assert (found["status"], found["attempt"], found["priority"]) == ("running", 1, 50), found


def python_line(program: str, *arguments: object) -> str:
    return shlex.join([PYTHON or "", "-I", "-S", "-c", program, *map(str, arguments)])


@pytest.fixture(scope="module")
def hostile():
    with isolated_site() as site:
        ann, bob = Person(site, "ann", "a"), Person(site, "bob", "b")
        set_secret(site, "KEY", SECRET)
        task = ann.submit(**TASK, key=KEY)
        told = eventually(lambda: WORD in (out := ann.output(task)) and out, "the output of ann's task")
        tasks_dir = pathlib.Path(site.env["DGPU__EXECUTOR__TASKS_DIR"])
        yield Hostile(site, tasks_dir, ann, bob, task, int(told.split()[1]))


def set_secret(site: Site, name: str, value: str) -> None:
    subprocess.run(
        site.command("secret", "set", name, "-A", "a"),
        env=site.env,
        input=value,
        text=True,
        timeout=120,
        check=True,
        stdout=sys.stderr,
    )
