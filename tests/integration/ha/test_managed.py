"""Two schedulers in managed mode and a witness: a machine is lost, another one leads, and leading is handed over."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from dgpu.entry.chaos.ports import free_port
from integration.ha.member_cluster import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """\
server: {{http_address: "127.0.0.1:{http}", grpc_address: "127.0.0.1:{grpc}", grpc_tls: true,
  join_address: "127.0.0.1:{join}"}}
storage: {{snapshot_dir: {home}/{name}}}
"""


class Schedulers:
    def __init__(self, site) -> None:
        self.site = site
        self.http = {name: free_port() for name in "ab"}
        for name, http in self.http.items():
            ports = {
                "http": http,
                "grpc": free_port(),
                "join": site.join_port if name == "a" else free_port(),
            }
            self.config(name).write_text(CONFIG.format(home=site.home, name=name, **ports))

    def config(self, name: str):
        return self.site.home / f"{name}.yaml"

    def start(self, name: str) -> None:
        # Both are on this host, and without a name they would have that of the host.
        named = {"DGPU__HA__NAME": name}
        self.site.start_service(f"member {name}", "scheduler", "--config", str(self.config(name)), **named)

    def ask(self, name: str, path: str, body=None):
        """(status, body); (0, None): no answer."""
        url = f"http://127.0.0.1:{self.http[name]}{path}"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
        except (OSError, ValueError):
            return 0, None

    def submit(self, name: str) -> str:
        status, body = self.ask(name, "/api/v1/tasks", {"command": "true", "held": True})
        assert status == 201
        return body["task_id"]

    def until_master(self, name: str) -> None:
        eventually(lambda: self.ask(name, "/ready?role=master")[0] == 200, f"{name} to lead")

    def until_seen(self, name: str, count: int) -> None:
        eventually(
            lambda: (self.ask(name, "/api/v1/tasks?limit=500")[1] or {}).get("total") == count,
            f"{name} to have {count} tasks",
        )


def test_a_machine_is_lost_and_the_other_scheduler_goes_on(site) -> None:
    site.with_tasks(5)
    both = Schedulers(site)
    members = [part for each in site.members for part in ("--member", each)]
    site.good("ha", "init", "--config", both.config("a"), *members, "--me", site.a)
    both.start("a")
    both.until_master("a")
    both.until_seen("a", 5)
    server = f"127.0.0.1:{site.join_port}"
    token = site.token(site.b)
    site.good("ha", "join", "--config", both.config("b"), "--server", server, "--token", token)
    both.start("b")
    site.until_healthy(2)
    site.join("c", site.c, "--witness")
    site.start_member("c")
    site.until_healthy(3)
    both.submit("a")
    both.until_seen("b", 6)
    assert site.status()["leader"]["http"].endswith(str(both.http["a"]))
    check_machines_are_shared(site)
    site.kill_member("a")  # the scheduler and its etcd
    both.until_master("b")
    both.until_seen("b", 6)
    both.submit("b")
    both.start("a")
    both.until_seen("a", 7)
    site.until_healthy(3)
    code, out, err = site.dgpu("ha", "handover", "--from", "neither", "--dir", site.directory("b"))
    assert (code, out) == (0, "")
    assert "neither does not lead; nothing was changed." in err
    both.submit("b")
    leader = site.status()["leader"]["name"]
    done = site.good("ha", "handover", "--from", leader, "--dir", site.directory("b"))
    assert done["changed"]
    both.until_master("a")
    both.submit("a")
    both.until_seen("b", 9)


def check_machines_are_shared(site) -> None:
    """An agent that joined one scheduler is known to the other, and so is its revocation."""
    site.good("ca", "token", "--node", "gpu-01", "--dir", site.directory("a"))

    def status(name: str) -> list[str]:
        rows = site.good("ca", "list", "--dir", site.directory(name))["machines"]
        return [row["status"] for row in rows if row["nodes"] == ["gpu-01"]]

    eventually(lambda: status("b") == ["invited"], "the invitation at the other scheduler")
    site.good("ca", "revoke", "gpu-01", "--dir", site.directory("b"))
    eventually(lambda: status("a") == ["revoked"], "the revocation at the first scheduler")
