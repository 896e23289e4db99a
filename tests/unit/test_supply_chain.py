"""Releases list their packages, and locks pin them by hash."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _sbom_script():
    loader = importlib.machinery.SourceFileLoader("sbom_script", str(ROOT / "scripts/sbom"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["run.lock", "dev.lock"])
def test_every_locked_package_has_hashes_and_no_address(name: str) -> None:
    """An install refuses a file with another hash, whichever index it came from."""
    text = (ROOT / "requirements" / name).read_text().strip()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert len(entries) > 20
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []
    assert [entry for entry in entries if "://" in entry] == []


def test_the_list_of_a_release_names_every_package_that_it_installs_or_bundles(tmp_path: Path) -> None:
    into = tmp_path / "dist" / "dgpu.cdx.json"
    subprocess.run([sys.executable, str(ROOT / "scripts/sbom"), str(into)], check=True, timeout=60)
    bill = json.loads(into.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    urls = {each["purl"] for each in bill["components"]}
    locked = re.findall(r"^([\w.-]+)==([^\s\\]+)", (ROOT / "requirements/run.lock").read_text(), re.MULTILINE)
    assert {f"pkg:pypi/{name.lower().replace('_', '-')}@{version}" for name, version in locked} <= urls
    web = json.loads((ROOT / "web/package.json").read_text())["dependencies"]
    assert {
        url.split("/", 1)[1].rpartition("@")[0].replace("%40", "@") for url in urls if "npm" in url
    } >= set(web)
    assert [each["name"] for each in bill["components"] if not each["hashes"]] == []
    assert set(bill["dependencies"][0]["dependsOn"]) == urls


def test_tools_that_only_build_the_dashboard_are_not_in_the_list() -> None:
    lock = {
        "packages": {
            "": {"name": "dgpu-dashboard"},
            "node_modules/@a/b": {"version": "1.2.3", "integrity": "sha512-AAEC", "license": "MIT"},
            "node_modules/tool": {"version": "1.0.0", "integrity": "sha512-AAEC", "dev": True},
        }
    }
    (made,) = _sbom_script().web_packages(lock)
    assert made["purl"] == "pkg:npm/%40a/b@1.2.3"
    assert made["hashes"] == [{"alg": "SHA-512", "content": "000102"}]
