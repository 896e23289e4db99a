"""The files of the dashboard, from memory. Only files of the bundle's own folder are served: no path is ever joined."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

BUNDLE = Path(__file__).parents[2] / "web_assets"
VIEWS = frozenset(
    {
        "cluster",
        "tasks",
        "submit",
        "timeline",
        "tenants",
        "quota",
        "nodes",
        "alerts",
        "audit",
        "history",
        "settings",
        "login",
        "tokens",
        "secrets",
    }
)
MAX_FILES = 1_000
MAX_BYTES = 32 << 20
_DOCS = "/docs"
_NOT_PAGES = ("/api", "/health", "/ready", "/metrics", "/docs", "/openapi.json", "/schema")
_PACKED = {".br": "br", ".gz": "gzip"}
_SMALL = 1_024  # not worth compressing
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_PACKABLE = frozenset({".html", ".js", ".css", ".json", ".map", ".webmanifest", ".svg", ".txt"})
_POLICY = (
    b"default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFETY = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", _POLICY),
]
_NOT_BUILT = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dgpu</title></head><body>
<h1>dgpu</h1><p>A scheduler runs here. Its dashboard is not built: run <code>make web</code> in the source, then load
this page again.</p><p>Meanwhile: <a href="/docs">the API</a>, <a href="/api/v1/gpus">GPUs</a>,
<a href="/api/v1/tasks">tasks</a>, and <code>dgpu ps</code>, <code>dgpu gpus</code>, <code>dgpu why</code>.</p>
</body></html>
"""


def build_of(folder: Path) -> str:
    """Identifies a build of the dashboard: its first page names all files by their content."""
    try:
        return hashlib.sha256((folder / "index.html").read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


class Page(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _File(NamedTuple):
    content_type: bytes
    cache: bytes
    bodies: dict[str, bytes]  # by encoding; "" is the unchanged file
    tag: str


class Pages:
    """`find` returns None for a path that is not a page."""

    def __init__(self, folder: Path = BUNDLE) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def find(self, method: str, path: str, headers: dict[bytes, bytes]) -> Page | None:
        if method not in {"GET", "HEAD"} or path == "/openapi.json":
            return None
        if not self._files:
            self._files = _load(self._folder)
        file = self._files.get(path)
        if file is None:
            if not _is_view(path, headers) and not _opens_docs(path, headers):
                return None
            file = self._files.get("/index.html")
            if file is None:
                return None if path == _DOCS else _not_built()
        return _answer(file, headers)


def _is_view(path: str, headers: dict[bytes, bytes]) -> bool:
    """The address of a view in the dashboard. The page finds the view itself; the file is the same."""
    if path == "/":
        return True
    parts = path.strip("/").split("/")
    if not path.isprintable() or "\\" in path or any(part in {"", ".", ".."} for part in parts):
        return False
    if any(path == name or path.startswith(name + "/") for name in _NOT_PAGES):
        return False
    if parts[0] in VIEWS:
        return True
    return "." not in path and b"text/html" in headers.get(b"accept", b"")


def _opens_docs(path: str, headers: dict[bytes, bytes]) -> bool:
    """A browser that opens the address gets the dashboard, which shows the description in its own look. Programs, and
    the dashboard itself, get the plain page.
    """
    return path == _DOCS and headers.get(b"sec-fetch-dest") == b"document"


def _answer(file: _File, headers: dict[bytes, bytes]) -> Page:
    encoding = _encoding_of(file, headers.get(b"accept-encoding", b""))
    tag = f'"{file.tag}{"-" + encoding if encoding else ""}"'.encode()
    told = [
        (b"content-type", file.content_type),
        (b"cache-control", file.cache),
        (b"etag", tag),
        (b"vary", b"accept-encoding"),
        *SAFETY,
    ]
    if tag in [one.strip().removeprefix(b"W/") for one in headers.get(b"if-none-match", b"").split(b",")]:
        return Page(304, told, b"")
    if encoding:
        told.append((b"content-encoding", encoding.encode()))
    return Page(200, told, file.bodies[encoding])


def _encoding_of(file: _File, header: bytes) -> str:
    taken = set()
    for part in header.decode("latin-1").lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            taken.add(name.strip())
    return next((name for name in ("br", "gzip") if name in taken and name in file.bodies), "")


def _not_built() -> Page:
    return Page(
        200,
        [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"), *SAFETY],
        _NOT_BUILT,
    )


def _load(folder: Path) -> dict[str, _File]:
    """The whole bundle without links. Empty while there is none, or while it is being built."""
    read: dict[str, bytes] = {}
    size = 0
    for name in _names(folder):
        body = (folder / name).read_bytes()
        size += len(body)
        if len(read) >= MAX_FILES or size > MAX_BYTES:
            break
        read["/" + name] = body
    if "/index.html" not in read:
        return {}
    return {path: _file(path, body, read) for path, body in read.items() if Path(path).suffix not in _PACKED}


def _names(folder: Path) -> list[str]:
    names = []
    for inside in ("", "assets/"):
        try:
            with os.scandir(folder / inside) as entries:
                names += [
                    inside + entry.name
                    for entry in entries
                    if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
                ]
        except OSError:
            continue
    return sorted(names)


def _file(path: str, body: bytes, read: dict[str, bytes]) -> _File:
    suffix = Path(path).suffix
    bodies = {"": body}
    for ending, encoding in _PACKED.items():
        if path + ending in read:
            bodies[encoding] = read[path + ending]
    if "gzip" not in bodies and suffix in _PACKABLE and len(body) > _SMALL:
        bodies["gzip"] = gzip.compress(body, 9, mtime=0)
    is_hashed = path.startswith("/assets/")
    return _File(
        content_type=_TYPES.get(suffix, "application/octet-stream").encode(),
        cache=b"public, max-age=31536000, immutable" if is_hashed else b"no-cache",
        bodies=bodies,
        tag=hashlib.sha256(body).hexdigest()[:20],
    )
