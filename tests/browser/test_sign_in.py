"""People sign in, see what their role may do, and sign out; tokens are created and revoked in the page.

The scheduler trusts no Unix user here: the browser of a test has the uid of the scheduler.
"""

from __future__ import annotations

import re

import pytest

from identity_provider import IdentityProvider, oidc_options
from rest_world import TOKEN, RestWorld

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
PHONE = {"width": 390, "height": 844}
SECRET = re.compile(r"^dgpu_[a-z2-7]{12}_[A-Za-z0-9_-]{43}$")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def provider(chromium):
    """Of another site than the scheduler: its cookies must survive the way there and back."""
    with IdentityProvider(host="localhost") as running:
        yield running


@pytest.fixture(scope="module")
def world(tmp_path_factory, provider):
    folder = tmp_path_factory.mktemp("sign-in")
    with RestWorld(folder, oidc=lambda url: oidc_options(provider, url, name="Example Lab")) as running:
        running.access._trusted = {}
        running.add_node("n1", gpus=4)
        for tenant in ("vision", "speech"):
            running.ask("POST", "/api/v1/tenants", {"id": tenant}, BEARER)
            task = {"command": "true", "name": f"of-{tenant}", "tenant_id": tenant}
            running.ask("POST", "/api/v1/tasks", task, BEARER)
        yield running


@pytest.fixture
def guest(visitor, provider):
    """A browser without access; refusals are what these tests are about."""
    visitor.allow("401")
    visitor.allow(rf"localhost:{provider.port}")
    return visitor


def token_of(world, **fields):
    asked = {"name": "laptop", "user": "ann", "tenants": ["vision"], **fields}
    reply = world.ask("POST", "/api/v1/tokens", asked, BEARER)
    assert reply.status == 201, reply
    return reply.body


def sign_in(page, token):
    page.get_by_test_id("login-token").fill(token)
    page.get_by_test_id("login-send").click()
    expect(page.get_by_test_id("account")).to_be_visible()


def test_a_token_opens_the_page_that_was_asked_for(guest, world):
    page = guest.look(world, "/tasks?status=running")
    expect(page.get_by_test_id("view-login")).to_be_visible()
    guest.allow("403")
    page.get_by_test_id("login-token").fill("dgpu_wrong")
    page.get_by_test_id("login-send").click()
    expect(page.get_by_test_id("problem")).to_contain_text("does not know this token")
    sign_in(page, token_of(world)["token"])
    expect(page).to_have_url(re.compile(r"/tasks\?status=running$"))
    expect(page.get_by_test_id("view-tasks")).to_contain_text("of-vision")
    expect(page.get_by_test_id("view-tasks")).not_to_contain_text("of-speech")
    expect(page.get_by_test_id("nav-tasks").locator(".badge")).to_have_count(0)  # it counts all tenants
    page.get_by_test_id("account").click()
    dialog = page.get_by_test_id("account-dialog")
    for words in ("ann", "user", "vision", "session of this browser"):
        expect(dialog).to_contain_text(words)
    page.get_by_test_id("sign-out").click()
    expect(page.get_by_test_id("view-login")).to_be_visible()
    page.goto("/tasks")
    expect(page.get_by_test_id("view-login")).to_be_visible()


def test_a_revoked_token_leads_an_open_page_to_the_login_and_back(guest, world):
    guest.allow("INCOMPLETE_CHUNKED")  # the end of its stream
    token = token_of(world)
    page = guest.look(world, "/tenants/vision")
    sign_in(page, token["token"])
    expect(page.get_by_test_id("tenant-tasks")).to_contain_text("of-vision")
    world.ask("DELETE", f"/api/v1/tokens/{token['id']}", headers=BEARER)
    expect(page.get_by_test_id("view-login")).to_be_visible()  # the page asks again by itself
    sign_in(page, token_of(world)["token"])
    expect(page.get_by_test_id("tenant-tasks")).to_contain_text("of-vision")


def test_an_account_of_the_provider_signs_in(guest, world, provider):
    page = guest.look(world, "/quota")
    page.get_by_test_id("login-oidc").click()
    expect(page.get_by_test_id("view-quota")).to_be_visible()
    expect(page.get_by_test_id("account")).to_contain_text("ann")
    expect(page.get_by_test_id("quota-fixed")).to_be_visible()
    assert "code" not in page.url
    page.reload()
    expect(page.get_by_test_id("view-quota")).to_be_visible()


def test_a_refusal_of_the_provider_is_told(guest, world, provider):
    guest.allow("403|503")
    provider.changes = {"groups": ["All Staff"]}
    page = guest.look(world, "/")
    page.get_by_test_id("login-oidc").click()
    expect(page.get_by_test_id("problem")).to_contain_text("claim groups")
    provider.changes = {}
    page.goto("/login?error=access_denied&error_description=Not+today")
    expect(page.get_by_test_id("problem")).to_contain_text("Not today")
    provider.is_broken = True
    world.oidc.tokens._facts, world.oidc.tokens._next_read_s = None, 0.0
    page.get_by_test_id("login-oidc").click()
    expect(page.get_by_test_id("problem")).to_contain_text("cannot be asked")
    provider.is_broken = False
    world.oidc.tokens._next_read_s = 0.0
    sign_in(page, token_of(world)["token"])


def test_a_viewer_is_offered_nothing_that_it_may_not_do(guest, world):
    page = guest.look(world, "/tasks")
    sign_in(page, token_of(world, role="viewer")["token"])
    task = world.ask("GET", "/api/v1/tasks?tenant=vision", headers=BEARER).body["tasks"][0]["task_id"]
    expect(page.get_by_test_id("new-task")).to_have_count(0)
    for place in ("nav-tokens", "nav-secrets", "nav-audit"):
        expect(page.get_by_test_id(place)).to_have_count(0)
    page.goto(f"/tasks/{task}")
    expect(page.get_by_test_id("task-status")).to_be_visible()
    for action in ("cancel", "retry", "retry-edit"):
        expect(page.get_by_test_id(action)).to_have_count(0)
    page.goto("/nodes")
    expect(page.get_by_test_id("node-table")).to_be_visible()
    expect(page.get_by_test_id("drain-n1")).to_have_count(0)
    page.goto("/submit")
    expect(page.get_by_test_id("empty")).to_contain_text("viewer")
    page.goto("/quota")
    expect(page.get_by_test_id("quota-apply")).to_have_count(0)
    for tenant in ("vision", "speech"):
        served = {"task": {"command": "true", "tenant_id": tenant}, "port": 80}
        assert world.ask("PUT", "/api/v1/services/chat", served, BEARER).status == 200
    page.goto("/services")
    expect(page.get_by_test_id("service-vision-chat")).to_be_visible()
    expect(page.get_by_test_id("service-speech-chat")).to_have_count(0)
    page.goto("/services/chat")
    expect(page.get_by_test_id("service-steps")).to_be_visible()
    for action in ("scale", "restart", "delete", "open"):
        expect(page.get_by_test_id(f"service-{action}")).to_have_count(0)


def test_a_tenant_admin_creates_a_token_and_ends_it(guest, world):
    page = guest.look(world, "/tokens")
    sign_in(page, token_of(world, user="ada", role="tenant-admin")["token"])
    page.get_by_test_id("token-new").click()
    roles = page.get_by_test_id("token-role").locator("option").all_inner_texts()
    assert roles == ["user", "viewer"]
    page.get_by_test_id("token-name").fill("for the robot")
    page.get_by_test_id("token-user").fill("robot")
    page.get_by_test_id("token-scopes").fill("task.fly")
    guest.allow("400")
    page.get_by_test_id("token-send").click()
    expect(page.get_by_test_id("token-dialog")).to_contain_text("task.fly")
    page.get_by_test_id("token-scopes").fill("task.submit, task.read")
    page.get_by_test_id("token-send").click()
    shown = page.get_by_test_id("token-made").locator("code").inner_text()
    assert SECRET.match(shown)
    told = world.ask("GET", "/api/v1/whoami", headers={"Authorization": f"Bearer {shown}"}).body
    assert (told["user"], told["scopes"]) == ("robot", ["task.submit", "task.read"])
    page.get_by_test_id("token-put-away").click()
    expect(page.get_by_text(shown)).to_have_count(0)
    page.get_by_test_id(f"revoke-{told['token_id']}").click()
    page.get_by_test_id("confirm-yes").click()
    expect(page.get_by_test_id(f"token-{told['token_id']}")).to_contain_text("revoked")
    assert world.ask("GET", "/api/v1/whoami", headers={"Authorization": f"Bearer {shown}"}).status == 401


def test_a_user_sets_replaces_and_deletes_a_secret_and_never_sees_a_value(guest, world):
    page = guest.look(world, "/")
    sign_in(page, token_of(world)["token"])
    page.get_by_test_id("nav-secrets").click()
    expect(page.get_by_test_id("empty")).to_contain_text("dgpu secret set")
    page.get_by_test_id("secret-new").click()
    assert page.get_by_test_id("secret-tenant").locator("option").all_inner_texts() == ["vision"]
    page.get_by_test_id("secret-name").fill("not a name")
    page.get_by_test_id("secret-value").fill("plum-value-1")
    guest.allow("400")
    page.get_by_test_id("secret-send").click()
    expect(page.get_by_test_id("secret-dialog")).to_contain_text("not a name")
    page.get_by_test_id("secret-name").fill("HF_TOKEN")
    page.get_by_test_id("secret-send").click()
    row = page.get_by_test_id("secret-vision-HF_TOKEN")
    expect(row).to_contain_text("ann")
    page.get_by_test_id("replace-vision-HF_TOKEN").click()
    value = page.get_by_test_id("secret-value")
    expect(value).to_have_value("")
    assert value.get_attribute("type") == "password"
    value.fill("plum-value-2")
    page.get_by_test_id("secret-send").click()
    expect(row.locator("td.num").first).to_have_text("2")
    page.reload()
    expect(row).to_be_visible()
    assert "plum-value" not in page.content()
    (stored,) = world.ask("GET", "/api/v1/secrets", headers=BEARER).body["secrets"]
    assert (stored["name"], stored["tenant_id"], stored["version"]) == ("HF_TOKEN", "vision", 2)
    page.get_by_test_id("language").click()
    expect(page.get_by_test_id("view-secrets")).to_contain_text("机密")
    page.get_by_test_id("language").click()
    page.get_by_test_id("delete-vision-HF_TOKEN").click()
    page.get_by_test_id("confirm-yes").click()
    expect(row).to_have_count(0)
    assert world.ask("GET", "/api/v1/secrets", headers=BEARER).body["total"] == 0


def test_an_administrator_sets_a_secret_of_any_tenant(guest, world):
    page = guest.look(world, "/secrets")
    sign_in(page, token_of(world, user="root", role="admin", tenants=None)["token"])
    page.get_by_test_id("secret-new").click()
    page.get_by_test_id("secret-tenant").fill("speech")
    page.get_by_test_id("secret-name").fill("KEY")
    page.get_by_test_id("secret-value").fill("x")
    page.get_by_test_id("secret-send").click()
    expect(page.get_by_test_id("secret-speech-KEY")).to_be_visible()
    world.ask("DELETE", "/api/v1/tenants/speech/secrets/KEY", headers=BEARER)


def test_an_administrator_has_everything(guest, world):
    page = guest.look(world, "/")
    sign_in(page, token_of(world, role="admin", tenants=None)["token"])
    for place in ("nav-tokens", "nav-alerts", "new-task"):
        expect(page.get_by_test_id(place)).to_be_visible()
    for keys, view in (("gk", "tokens"), ("gs", "secrets")):
        page.keyboard.type(keys)
        expect(page.get_by_test_id(f"view-{view}")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_new_pages_fit_a_phone_and_both_languages(guest, world, scheme):
    page = guest.look(world, "/login", viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    for path, view in (
        ("/login", "login"),
        ("/tokens", "tokens"),
        ("/secrets", "secrets"),
        ("/services", "services"),
        ("/workers", "workers"),
        ("/tenants/vision", "tenant"),
    ):
        page.goto(path)
        if view == "tokens":
            sign_in(page, token_of(world, user="ada", role="tenant-admin")["token"])
        expect(page.get_by_test_id(f"view-{view}")).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], f"{path} is {wide} px wide"
    page.goto("/login")
    page.get_by_test_id("language").click()
    expect(page.get_by_test_id("view-login")).to_contain_text("登录")
