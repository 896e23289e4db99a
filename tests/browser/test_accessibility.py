"""axe finds nothing serious in any view, light or dark."""

from __future__ import annotations

import pytest

from .test_page import addresses
from .worlds import ROOT

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """() => axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, help, nodes }) =>
        `${id}: ${help}: ${nodes.slice(0, 5).map((node) => node.html.slice(0, 200)).join(" | ")}`))"""


@pytest.fixture(scope="module")
def scene(chromium, scenes):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed (npm ci in web/)")
    return scenes.open(20)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_serious_flaws(visitor, scene, theme):
    # The page's policy forbids scripts of others, axe among them.
    page = visitor.look(scene.world, color_scheme=theme, bypass_csp=True)
    found = {}
    for view, path in [*addresses(scene).items(), ("waiting", f"/tasks/{scene.waiting}")]:
        page.goto(path)
        expect(page.locator("h1").first).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        page.add_script_tag(content=AXE.read_text())
        if flaws := page.evaluate(RUN):
            found[view] = flaws
    assert found == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_dialog_has_serious_flaws(visitor, scene, theme):
    page = visitor.look(scene.world, "/nodes", color_scheme=theme, bypass_csp=True)
    page.get_by_role("button", name="Drain").first.click()
    expect(page.get_by_test_id("drain-effect")).to_be_visible()
    page.add_script_tag(content=AXE.read_text())
    assert page.evaluate(RUN) == []
