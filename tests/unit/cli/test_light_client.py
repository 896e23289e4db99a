"""`pip install dgpu`: command line and SDK with a few packages, and a clear word where a service needs more."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from dgpu.cli.extras import PACKAGES
from dgpu.cli.main import VERBS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = re.compile(r"[A-Za-z0-9._-]+")

# Hides every distribution but those that `pip install dgpu` brings along.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in hidden or name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
hidden = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Hidden())
"""


def names(requirements: list[str]) -> set[str]:
    return {plain(NAME.match(each)[0]) for each in requirements}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(wanted: set[str]) -> set[str]:
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found.add(name)
        required = metadata.requires(name) or []
        wanted |= names([each for each in required if "extra ==" not in each]) & installed()
    return found


def installed() -> set[str]:
    return {plain(each.metadata["Name"]) for each in metadata.distributions()}


def hidden_modules() -> set[str]:
    """Top-level modules of all packages that a light client does not have."""
    there = closure(names(PROJECT["dependencies"]))
    owners = metadata.packages_distributions()
    return {
        module
        for module, packages in owners.items()
        if module != "dgpu" and not there & {plain(each) for each in packages}
    }


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE + code, ",".join(sorted(hidden_modules())), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


CLIENT_VERBS = sorted(name for name, verb in VERBS.items() if not verb.extras)
IMPORT_ALL = """
import dgpu.client
from dgpu.cli.main import load_verb
for name in sys.argv[1:]:
    load_verb(name)
print("ok", "grpc" in sys.modules)
"""
CALL = "from dgpu.cli.main import main; main()"


def test_the_sdk_and_the_verbs_of_a_client_need_none_of_the_packages_of_services() -> None:
    assert {"grpc", "litestar", "cryptography", "uvloop"} <= hidden_modules()
    done = run(IMPORT_ALL, *CLIENT_VERBS)
    assert (done.stdout, done.returncode) == ("ok False\n", 0), done.stderr


@pytest.mark.parametrize(
    ("verb", "extras"), [("scheduler", "server"), ("agent", "agent"), ("up", "server,agent")]
)
def test_a_verb_of_a_service_names_the_packages_it_misses_and_the_command(verb: str, extras: str) -> None:
    done = run(CALL, verb)
    assert done.returncode == 1
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"dgpu: {verb} needs packages that are not installed: cryptography, grpcio, ")
    assert second == f"Install them: pip install 'dgpu[{extras}]'"


def test_a_package_that_is_missed_later_is_named_too() -> None:
    done = run(CALL, "ha", "backup", "--config", "none.yaml", "none")
    assert done.returncode == 1
    assert re.fullmatch(
        r"dgpu: The package [a-z-]+ is not installed\nInstall it: pip install 'dgpu\[server\]'\n", done.stderr
    )


def test_the_table_of_packages_is_that_of_the_distribution() -> None:
    for extra, modules in PACKAGES.items():
        assert set(modules.values()) == names(PROJECT["optional-dependencies"][extra])
    owners = metadata.packages_distributions()
    for modules in PACKAGES.values():
        for module, package in modules.items():
            assert package in {plain(each) for each in owners[module.partition(".")[0]]}
