"""REST over HTTPS, with certificates of the cluster's authority and with files."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import stat
import sys
import time

import pytest

from dgpu.client.asynchronous import AsyncClient
from dgpu.entry.chaos.ports import free_port
from dgpu.service.machines.authority import load_authority
from e2e.conftest import eventually
from e2e.tls_cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster():
    place = Cluster(http_tls="ca")
    yield place
    place.close()


def trust(cluster):
    """The command line then asks by HTTPS."""
    path = cluster.home / "dgpu-ca.pem"
    path.write_text(cluster.ca("certificate").out)
    cluster.env |= {"SSL_CERT_FILE": str(path), "DGPU_SERVER": f"https://localhost:{cluster.http}"}
    return path


def context_of(path):
    return ssl.create_default_context(cafile=path)


def shown(cluster):
    plain = socket.create_connection(("127.0.0.1", cluster.http), timeout=30)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(plain) as connection:
        return connection.getpeercert(binary_form=True)


def test_people_and_agents_use_tls(cluster, monkeypatch):
    port = free_port()
    cluster.configure(
        http_tls="ca", proxy_address=f"127.0.0.1:{port}", proxy_url=f"https://*.apps.test:{port}"
    )
    cluster.ca("init")
    path = trust(cluster)
    assert "PRIVATE" not in path.read_text()
    cluster.start("scheduler")
    cluster.add("n1")
    assert cluster.join("n1", cluster.token("n1")).code == 0
    cluster.start("n1")
    cluster.is_ready("n1")
    assert cluster.good("run", "-G", "1", "--", "for i in 1 2 3; do echo $i; done").out == "1\n2\n3\n"
    program = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "$DGPU_PORT")
    cluster.good("serve", "--name", "web", "-G", "1", "--", f"exec {' '.join(program)}")
    eventually(lambda: json.loads(cluster.good("services", "show", "web", "-o", "json").out)["ready"], "web")
    assert status_of(path, "web--default.apps.test", port) == 200
    long = cluster.dgpu("serve", "--name", "web", "-A", "t" * 60, "--", "true")
    assert (long.code, "at most 63" in long.err) == (2, True), long
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    assert asyncio.run(count_nodes(f"https://127.0.0.1:{cluster.http}")) == 1
    pair = cluster.home / "scheduler" / "ca" / "https.pem"
    assert stat.S_IMODE(pair.stat().st_mode) == 0o600


def status_of(trusted, host, port):
    """Of the first page, over TLS: the certificate must be valid for this host."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    with context_of(trusted).wrap_socket(plain, server_hostname=host) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        return int(connection.makefile("rb").readline().split()[1])


async def count_nodes(url):
    async with AsyncClient(url) as client:
        return len((await client.nodes()).nodes)


def test_a_client_that_does_not_trust_the_authority_sends_nothing(cluster):
    cluster.ca("init")
    trust(cluster)
    cluster.start("scheduler")
    del cluster.env["SSL_CERT_FILE"]
    answer = cluster.dgpu("ps")
    assert (answer.code, "certificate" in answer.err.lower()) == (3, True), answer
    cluster.env["DGPU_SERVER"] = f"http://localhost:{cluster.http}"
    assert cluster.dgpu("ps").code == 3


def test_a_last_answer_is_not_lost_over_tls(cluster):
    """It comes before all bytes of the client are read, and TLS cannot end one side of a connection alone."""
    cluster.ca("init")
    path = trust(cluster)
    cluster.start("scheduler")
    connection = http.client.HTTPSConnection("localhost", cluster.http, context=context_of(path), timeout=60)
    body = b'{"tasks": [' + b" " * (16 << 20) + b"]}"
    connection.request("POST", "/api/v1/tasks/batch", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["status"]) == (413, 413)
    connection.close()
    plain = socket.create_connection(("localhost", cluster.http), timeout=60)
    with context_of(path).wrap_socket(plain, server_hostname="localhost") as rubbish:
        rubbish.sendall(b"no request\r\n\r\n" + b"x" * 100_000)
        assert rubbish.recv(4_096).startswith(b"HTTP/1.1 400 ")
    assert "NotImplemented" not in cluster.log("scheduler")


def test_replaced_files_are_used_without_a_restart(cluster):
    """Broken files leave the certificate before in use."""
    cluster.ca("init")
    cluster.start("scheduler")
    pair = cluster.home / "scheduler" / "ca" / "https.pem"
    mine = cluster.home / "mine.pem"
    mine.write_bytes(pair.read_bytes())
    cluster.stop("scheduler")
    (cluster.home / "scheduler.log").unlink()
    cluster.configure(http_tls="files", http_certificate_file=str(mine), http_key_file=str(mine))
    cluster.start("scheduler")
    first = shown(cluster)
    mine.write_bytes(b"rubbish")
    eventually(
        lambda: "https_certificate_not_loaded" in cluster.log("scheduler"), "the rubbish to be noticed"
    )
    assert shown(cluster) == first
    fresh = load_authority(cluster.home / "scheduler").issue_scheduler(
        ["localhost"], now_s=int(time.time()), lifetime_s=3_600
    )
    mine.write_bytes(fresh.key_pem + fresh.certificate_pem)
    eventually(lambda: shown(cluster) != first, "the new certificate")
    assert ssl.DER_cert_to_PEM_cert(shown(cluster)).encode() == fresh.certificate_pem


def test_missing_files_stop_the_start(cluster):
    cluster.configure(
        http_tls="files", http_certificate_file="/nowhere/a.pem", http_key_file="/nowhere/a.key"
    )
    cluster.ca("init")
    answer = cluster.dgpu("scheduler", "--config", cluster.home / "scheduler.yaml")
    assert (answer.code, "server.http_certificate_file" in answer.err) == (1, True), answer
    assert not (cluster.home / "scheduler" / "journal").exists()


def asked(cluster, path, context, body=None, token=None):
    connection = http.client.HTTPSConnection("localhost", cluster.http, context=context, timeout=30)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    return answer, answer.read()


def test_on_every_interface_it_needs_tls_and_tokens_have_their_rights(cluster):
    cluster.ca("init")
    path = trust(cluster)
    text = (cluster.home / "scheduler.yaml").read_text()
    text = text.replace(f"127.0.0.1:{cluster.http}", f"0.0.0.0:{cluster.http}")
    (cluster.home / "scheduler.yaml").write_text(text)
    cluster.start("scheduler")
    token = cluster.good("token", "create", "laptop", "--user", "ann", "--tenant", "vision").out.strip()
    _, told = asked(cluster, "/api/v1/whoami", context_of(path), token=token)
    assert json.loads(told)["user"] == "ann"
    answer, _ = asked(cluster, "/api/v1/tokens", context_of(path), token=token)
    assert answer.status == 403
    answer, _ = asked(cluster, "/api/v1/whoami", context_of(path), token=token[:-4] + "AAAA")
    assert answer.status == 403
    (cluster.home / "scheduler.yaml").write_text(text.replace('"http_tls": "ca"', '"http_tls": "none"'))
    checked = cluster.dgpu("scheduler", "--config", str(cluster.home / "scheduler.yaml"), "--check")
    assert (checked.code, "tokens would be sent in plain text" in checked.err) == (2, True), checked


def test_a_browsers_session_is_never_sent_in_plain_text(cluster):
    cluster.ca("init")
    path = trust(cluster)
    cluster.start("scheduler")
    _, told = asked(cluster, "/api/v1/session/code", context_of(path), body={})
    answer, _ = asked(cluster, "/api/v1/session", context_of(path), body={"code": json.loads(told)["code"]})
    assert answer.getheader("set-cookie").endswith("SameSite=Strict; Secure")
