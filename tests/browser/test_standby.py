"""The page of a scheduler that is not the master. Its answer about its role is changed on the way to the browser."""

from __future__ import annotations

import pytest

from browser.test_unknown import changed

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

MASTER = "http://gpu2.example:8080"


def standing(**facts):
    return changed(lambda body: body.update(facts))


def test_a_standby_tells_its_age_and_the_master_and_offers_no_change(visitor, stage):
    page = visitor.look(stage, "/tasks")
    expect(page.get_by_test_id("new-task")).to_be_visible()
    expect(page.get_by_test_id("standby")).to_have_count(0)
    page.route("**/ready", standing(role="standby", lag_ms=7_400, master=MASTER))
    page.goto("/tasks?status=running")
    banner = page.get_by_test_id("standby")
    expect(banner).to_have_text(f"Standby: data 7 s old; changes go to {MASTER}")
    expect(banner.get_by_role("link")).to_have_attribute("href", f"{MASTER}/tasks?status=running")
    expect(page.get_by_test_id("new-task")).to_have_count(0)
    expect(page.get_by_test_id("view-tasks")).to_be_visible()


def test_a_standby_without_a_master_says_that_nothing_can_be_changed(visitor, stage):
    page = visitor.look(stage, "/submit")
    page.route("**/ready", standing(role="standby", lag_ms=None, master="javascript:alert(1)"))
    page.goto("/tasks")
    banner = page.get_by_test_id("standby")
    expect(banner).to_contain_text("it has not read the journal yet; no master is elected")
    expect(banner.get_by_role("link")).to_have_count(0)


def test_the_other_schedulers_are_named_when_the_connection_is_lost(visitor, stage):
    visitor.allow("Failed to load resource: net::|ERR_")  # nobody is there to answer
    page = visitor.look(stage, "/submit")
    page.route("**/ready", standing(master=stage.url, schedulers=[stage.url, MASTER]))
    with page.expect_response("**/ready"):
        page.goto("/tasks")
    expect(page.get_by_test_id("link-state")).to_have_attribute("data-state", "live")
    stage.server.kill()
    expect(page.get_by_test_id("banner")).to_contain_text("The connection to the scheduler is lost")
    others = page.get_by_test_id("others")
    expect(others).to_have_text(f"Other schedulers: {MASTER}")
    expect(others.get_by_role("link")).to_have_attribute("href", f"{MASTER}/tasks")
    stage.server.start()
    stage.server.wait_until_ready()
    stage.server.wait_for_nodes(1)


def test_several_schedulers_and_their_engine_are_on_the_first_page(visitor, stage):
    row = {"url": "", "lag_ms": 900, "epoch": 4, "journal_index": 9, "version": "1.0", "last_seen_seconds": 2}
    member = {"version": "3.4.23", "db_bytes": 1 << 20, "quota_bytes": 1 << 31}
    told = {
        "schedulers": [
            {**row, "name": "gpu1", "role": "master", "me": True, "healthy": True, "trouble": ""},
            {
                **row,
                "name": "gpu2",
                "role": "standby",
                "me": False,
                "healthy": False,
                "trouble": "12 s behind",
            },
        ],
        "members": [
            {**member, "address": "gpu1:9379", "state": "leader", "healthy": True, "trouble": ""},
            {
                **member,
                "address": "gpu2:9379",
                "state": "silent",
                "healthy": False,
                "trouble": "Connection refused",
            },
        ],
        "engine": "",
        "members_may_stop": 0,
    }
    page = visitor.look(stage, "/")
    expect(page.get_by_test_id("view-cluster")).to_be_visible()
    expect(page.get_by_test_id("schedulers")).to_have_count(0)  # it is alone
    page.route("**/ready", standing(master=stage.url))
    page.route("**/api/v1/schedulers", changed(lambda body: body.update(told)))
    page.goto("/")
    card = page.get_by_test_id("schedulers")
    expect(card).to_contain_text("engine members that may stop: 0")
    expect(page.get_by_test_id("scheduler-gpu1")).to_contain_text("master")
    expect(page.get_by_test_id("scheduler-gpu2")).to_contain_text("12 s behind")
    expect(page.get_by_test_id("member-table")).to_contain_text("Connection refused")
