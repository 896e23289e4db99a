"""The dashboard as it is built: small, self-contained, and tested by its own tests. And how it is built."""

from __future__ import annotations

import gzip
import importlib.util
import pathlib
import re
import subprocess
import sys
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).parents[3]
WEB = ROOT / "web"
ASSETS = ROOT / "src" / "dgpu" / "web_assets"
MAX_GZIPPED_BYTES = 150_000
MAX_LINES_OF_A_MODULE = 300


@pytest.fixture
def built() -> pathlib.Path:
    if not (ASSETS / "index.html").is_file():
        pytest.skip("the dashboard is not built here; `make web` builds it or says why it cannot")
    return ASSETS


def test_the_tests_of_the_pages_pass(web: ModuleType) -> None:
    try:
        web.need_packages(WEB)
    except web.NotBuilt as reason:
        pytest.skip(f"no Node.js or no packages: {reason}")
    ran = subprocess.run(
        [sys.executable, str(WEB / "bundle.py"), "tests"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_whole_dashboard_is_small(built: pathlib.Path) -> None:
    """It opens at once, also over a slow tunnel."""
    sizes = {path.name: path.stat().st_size for path in built.rglob("*.gz")}
    assert sum(sizes.values()) <= MAX_GZIPPED_BYTES, sizes


def test_every_file_of_the_page_is_there_packed_and_plain(built: pathlib.Path) -> None:
    page = (built / "index.html").read_text()
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert len(named) == 4
    for name in named:
        assert re.fullmatch(r"/assets/[a-z]+-[0-9A-Za-z]{8}\.(js|css|svg)", name), name
        path = built / name.removeprefix("/")
        assert gzip.decompress(path.with_name(path.name + ".gz").read_bytes()) == path.read_bytes()


def test_the_page_needs_nothing_from_anywhere_else(built: pathlib.Path) -> None:
    """No other host is asked for anything, and nothing stands in the way of a strict content security policy."""
    page = (built / "index.html").read_text()
    assert re.search(r"<style|<script(?![^>]* src=)|\sstyle=|\son\w+=|https?:", page) is None
    for path in built.glob("assets/*.css"):
        assert re.search(r"url\(|@import|https?:", path.read_text()) is None
    for path in built.glob("assets/*.js"):
        addresses = set(re.findall(r"https?://[\w./-]+", path.read_text()))
        assert all(each.startswith("http://www.w3.org/") for each in addresses), addresses
        assert re.search(r"\beval\(|new Function\(", path.read_text()) is None


def test_text_of_the_server_is_never_taken_for_markup() -> None:
    sources = [*WEB.glob("src/**/*.ts"), *WEB.glob("src/**/*.tsx")]
    assert len(sources) > 20
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc")
    assert [str(path) for path in sources if unsafe.search(path.read_text(encoding="utf-8"))] == []


def test_modules_of_the_pages_stay_small() -> None:
    """Tables of messages are as long as there are messages."""
    sources = [*WEB.glob("src/**/*.ts"), *WEB.glob("src/**/*.tsx")]
    long = {
        str(path.relative_to(WEB)): lines
        for path in sources
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES_OF_A_MODULE
    }
    assert set(long) <= {"src/i18n/en.ts", "src/i18n/zh.ts"}, long


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tree with sources of a dashboard in it, none built."""
    (tmp_path / "web" / "src").mkdir(parents=True)
    (tmp_path / "src" / "dgpu").mkdir(parents=True)
    (tmp_path / "web" / "package.json").write_text("{}")
    (tmp_path / "web" / "package-lock.json").write_text("{}")
    (tmp_path / "web" / "src" / "main.tsx").write_text("first")
    return tmp_path


def test_only_changed_sources_are_built_again(web: ModuleType, tree: pathlib.Path) -> None:
    first = web.digest_of(tree / "web")
    (tree / "web" / "node_modules" / "x").mkdir(parents=True)
    (tree / "web" / "node_modules" / "x" / "index.js").write_text("not ours")
    (tree / "web" / "build").mkdir()
    (tree / "web" / "build" / "made.mjs").write_text("made")
    assert web.digest_of(tree / "web") == first

    assets = tree / "src" / "dgpu" / "web_assets"
    assets.mkdir()
    (assets / "index.html").write_text("built")
    (assets / web.STAMP).write_text(first + "\n")
    assert web.bundle(tree) is False

    (tree / "web" / "src" / "main.tsx").write_text("second")
    assert web.digest_of(tree / "web") != first
    assert not web.is_current(assets, web.digest_of(tree / "web"))


def test_without_node_and_network_it_says_so_and_leaves_what_was_built(
    web: ModuleType, tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tree / "src" / "dgpu" / "web_assets"
    assets.mkdir()
    (assets / "index.html").write_text("of last week")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(web.NotBuilt, match=r"fetching Node\.js"):
        web.bundle(tree)
    assert (assets / "index.html").read_text() == "of last week"


def test_a_distribution_with_built_pages_needs_no_sources(web: ModuleType, tree: pathlib.Path) -> None:
    (tree / "web" / "package.json").unlink()
    with pytest.raises(web.NotBuilt, match="not here"):
        web.bundle(tree)
    assets = tree / "src" / "dgpu" / "web_assets"
    assets.mkdir()
    (assets / "index.html").write_text("built elsewhere")
    assert web.bundle(tree) is False
