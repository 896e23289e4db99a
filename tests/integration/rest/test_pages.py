"""The dashboard's files: served from memory, safely, and nothing else of the disk."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any

import pytest

from dgpu.service.rest.access import Access
from dgpu.service.rest.backend import RestOptions
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.front import Front
from dgpu.service.rest.pages import Pages
from rest_world import RestWorld

INDEX = b"<!doctype html><title>dgpu</title><script type=module src=/assets/app-1a2b3c4d.js></script>"
SCRIPT = b"export const greeting = 'hello';\n" * 100


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(INDEX)
    (folder / "favicon.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "assets" / "app-1a2b3c4d.js").write_bytes(SCRIPT)
    (folder / "assets" / "app-1a2b3c4d.js.gz").write_bytes(gzip.compress(SCRIPT))
    (folder / "assets" / "app-1a2b3c4d.js.br").write_bytes(b"stands for brotli")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "assets" / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.fixture
def world(tmp_path, bundle):
    with RestWorld(tmp_path, options=RestOptions(version="test", pages_dir=bundle)) as running:
        yield running


def test_the_page_is_safe_and_asked_for_again_each_time(world) -> None:
    page = world.ask("GET", "/")
    assert (page.status, page.raw) == (200, INDEX)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    again = world.ask("GET", "/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status, again.raw) == (304, b"")
    assert world.ask("HEAD", "/").status == 200


def test_hashed_files_are_kept_for_ever_and_packed_as_the_browser_likes(world) -> None:
    path = "/assets/app-1a2b3c4d.js"
    plain = world.ask("GET", path)
    assert plain.raw == SCRIPT
    assert plain.headers["content-type"].startswith("text/javascript")
    assert "immutable" in plain.headers["cache-control"]
    packed = world.ask("GET", path, headers={"Accept-Encoding": "gzip, deflate"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.raw) == SCRIPT
    best = world.ask("GET", path, headers={"Accept-Encoding": "gzip, br"})
    assert (best.headers["content-encoding"], best.raw) == ("br", b"stands for brotli")
    refused = world.ask("GET", path, headers={"Accept-Encoding": "br;q=0, gzip;q=0"})
    assert refused.raw == SCRIPT
    assert len({plain.headers["etag"], packed.headers["etag"], best.headers["etag"]}) == 3
    assert world.ask("GET", "/favicon.svg").headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize(
    "path", ["/tasks/7", "/nodes", "/nodes/gpu01.lab.example", "/timeline?from=1", "/quota"]
)
def test_an_address_of_a_view_opens_the_page(world, path) -> None:
    assert world.ask("GET", path).raw == INDEX


def test_an_unknown_address_is_a_page_for_people_and_a_problem_for_programs(world) -> None:
    assert world.ask("GET", "/what/is/this", headers={"Accept": "text/html,*/*"}).raw == INDEX
    assert world.ask("GET", "/what/is/this").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../../secret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/../secret.txt",
        "/assets/..%5c..%5csecret.txt",
        "/tasks/../../secret.txt",
        "/assets/link.txt",
        "/assets/app-1a2b3c4d.js.gz",
        "/assets/",
        "/assets/none-00000000.js",
        "//etc/passwd",
        "/tasks/%00",
        "/secret.txt",
    ],
)
def test_tricks_with_paths_find_nothing(world, path) -> None:
    reply = world.ask("GET", path, headers={"Accept": "*/*"})
    assert reply.status == 404
    assert b"secret" not in reply.raw.replace(b"secret.txt", b"")


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api", "/docs/x", "/schema"])
def test_what_belongs_to_the_api_is_never_the_page(world, path) -> None:
    reply = world.ask("GET", path, headers={"Accept": "text/html"})
    assert reply.headers["content-type"] == "application/problem+json"


def test_pages_are_only_read_and_only_under_a_name_of_ours(world) -> None:
    assert world.ask("POST", "/", {}).status in {404, 405}
    assert world.ask("GET", "/", headers={"Host": "evil.example"}).status == 421


def test_without_a_bundle_the_page_says_how_to_build_it(tmp_path) -> None:
    missing = tmp_path / "not-yet"
    with RestWorld(tmp_path, options=RestOptions(version="test", pages_dir=missing)) as world:
        for path in ("/", "/tasks/7"):
            page = world.ask("GET", path)
            assert page.status == 200
            assert "make web" in page.body
        assert world.ask("GET", "/assets/app.js").status == 404
        missing.mkdir()
        (missing / "index.html").write_bytes(INDEX)
        assert world.ask("GET", "/").raw == INDEX, "a bundle that is built meanwhile is found"


def test_the_first_paint_waits_for_no_frame(bundle) -> None:
    """The frame takes a second to import; the page is there before it."""

    async def never(*_: object) -> None:
        raise AssertionError("the frame was asked")

    async def ask() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        access = Access(mode="loopback", token="t" * 43, clock=lambda: 0.0)
        backend = SimpleNamespace(options=RestOptions())
        front = Front(backend, access, never, Pages(bundle))  # type: ignore[arg-type]
        scope = {"type": "http", "method": "GET", "path": "/tasks/7", "headers": [(b"host", b"localhost")]}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await front({**scope, "state": {"request_id": "r", "peer": Peer(uid=None)}}, None, send)
        return sent

    start, body = asyncio.run(ask())
    assert (start["status"], body["body"]) == (200, INDEX)
