"""A real browser: Debian's Chromium, driven by playwright. After each test nothing may have gone wrong in the page."""

from __future__ import annotations

import pathlib
import re
import urllib.parse

import pytest

from .worlds import ROOT, Scene, World

CHROMIUM = pathlib.Path("/usr/bin/chromium")
ASSETS = ROOT / "src" / "dgpu" / "web_assets"
PATIENCE_MS = 60_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name is ever looked up: what is not on this machine cannot be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
]
TELL_VIOLATIONS = (
    "document.addEventListener('securitypolicyviolation',"
    " (event) => console.error('CSP: ' + event.violatedDirective + ' ' + event.blockedURI))"
)


@pytest.fixture(scope="module")
def chromium():
    """Of a module, not of the session: playwright keeps an event loop, which tests with loops of their own
    would meet.
    """
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed (Debian package chromium)")
    if not (ASSETS / "index.html").is_file():
        pytest.skip("the dashboard is not built; `make web` says why")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


class Visitor:
    """Opens pages of a world, and keeps what went wrong in them."""

    def __init__(self, chromium):
        self._chromium = chromium
        self._contexts = []
        self._allowed = []
        self.faults = []

    def look(self, world, path="/", **options):
        context = self._chromium.new_context(
            base_url=world.url,
            **{
                "viewport": {"width": 1280, "height": 800},
                "locale": "en-GB",
                "timezone_id": "UTC",
                **options,
            },
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(TELL_VIOLATIONS)
        context.on("request", lambda request: self._check_address(world, request.url))
        page = context.new_page()
        page.on(
            "console", lambda said: said.type == "error" and self._fault(f"console: {said.text} ({page.url})")
        )
        page.on("pageerror", lambda error: self._fault(f"error: {error} ({page.url})"))
        page.goto(path)
        return page

    def allow(self, pattern):
        """What a test brings about on purpose."""
        self._allowed.append(re.compile(pattern))

    def close(self):
        for context in self._contexts:
            context.close()
        return [fault for fault in self.faults if not any(each.search(fault) for each in self._allowed)]

    def _check_address(self, world, address):
        if not address.startswith((world.url + "/", "data:", "blob:")):
            self._fault(f"a request to {urllib.parse.urlsplit(address).netloc}: {address}")

    def _fault(self, text):
        self.faults.append(text)


@pytest.fixture
def visitor(chromium):
    """No error in the console, no violation of the page's policy, no request to anywhere else: after every test."""
    visitor = Visitor(chromium)
    yield visitor
    assert visitor.close() == []


class Scenes:
    """Worlds that are only looked at, by number of nodes. Each is started when it is first wanted."""

    def __init__(self):
        self._open = {}

    def open(self, nodes):
        if nodes not in self._open:
            self._open[nodes] = Scene(nodes)
        return self._open[nodes]

    def close(self, nodes):
        """A large one is work for the machine even when nobody looks."""
        if nodes in self._open:
            self._open.pop(nodes).world.close()

    def close_all(self):
        for nodes in list(self._open):
            self.close(nodes)


@pytest.fixture(scope="session")
def scenes():
    scenes = Scenes()
    yield scenes
    scenes.close_all()


@pytest.fixture(scope="module")
def stage():
    """A node of four GPUs for stories that change things."""
    world = World(1, "4xV100")
    yield world
    world.close()
