"""Wall clocks that are set while real processes run: nothing ends, nothing is deleted, and shown times become right
again.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time
from urllib.parse import urlsplit

import pytest

from .conftest import PATIENCE_SECONDS, Site, eventually

pytestmark = pytest.mark.slow

DAY = 86_400
YEAR = 365 * DAY
CLOSE_SECONDS = 300  # far less than any jump, far more than any machine is slow


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = tmp_path_factory.mktemp("shim") / "clock_shim.so"
    source = pathlib.Path(__file__).with_name("clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source], check=True)
    return built


class ClockSite(Site):
    def __init__(self, shim):
        super().__init__()
        self._shifts = self.home / "shifts"
        self._shifts.write_bytes(bytes(16))
        self.env |= {"LD_PRELOAD": str(shim), "CLOCK_SHIM_FILE": str(self._shifts)}

    def shift(self, wall_seconds, boot_seconds=0):
        with self._shifts.open("r+b") as file:
            file.write(struct.pack("ll", wall_seconds, boot_seconds))

    def ready(self):
        link = http.client.HTTPConnection(urlsplit(self.record["url"]).netloc, timeout=30)
        try:
            link.request("GET", "/ready")
            return json.loads(link.getresponse().read())
        except OSError:
            return {}
        finally:
            link.close()

    def created(self):
        """The created time of a task that is submitted now, in seconds since 1970."""
        task = self.task(self.submit("--", "true"))
        return dt.datetime.fromisoformat(task["created_at"]).timestamp()


@pytest.fixture
def site(shim):
    place = ClockSite(shim)
    yield place
    place.shift(0)
    place.close()


def is_close(seconds, expected):
    return abs(seconds - expected) < CLOSE_SECONDS


def test_a_wall_clock_that_jumps_ends_nothing_and_is_reported(site):
    site.up()
    limited = site.submit("--timeout", "3600", "--", "sleep", "600")
    site.started(limited)
    for jump in (3_600, -3_600, 10 * YEAR, -10 * YEAR):
        site.shift(jump)
        eventually(
            lambda jump=jump: is_close(site.ready()["clock_error_seconds"], jump),
            f"a jump by {jump} s to be seen",
        )
        assert site.dgpu("run", "--", "echo", "works").out == "works\n"
        assert site.task(limited)["status"] == "running"
        assert [node["status"] for node in site.json("nodes")["nodes"]] == ["ready"]
    ready = site.ready()
    assert ready["ready"] is True
    assert "The wall clock was set" in ready["detail"]
    assert "The wall clock was set" in site.dgpu("doctor").out
    eventually(
        lambda: any(alert["rule"] == "clock_skew" for alert in site.json("alerts")["alerts"]), "the alert"
    )
    site.shift(0)
    task = site.task(limited)
    assert (task["status"], task["attempt"]) == ("running", 1)


def test_a_running_scheduler_follows_a_clock_that_is_corrected(site):
    site.shift(40 * DAY)
    site.up()
    assert is_close(site.created(), time.time() + 40 * DAY)
    site.shift(0)
    eventually(
        lambda: is_close(site.created(), time.time()), "shown times to be right", seconds=2 * PATIENCE_SECONDS
    )


def test_after_a_run_with_a_wrong_clock_the_next_start_is_right_and_nothing_was_deleted(site):
    site.shift(40 * DAY)
    site.up()
    early = site.submit("--", "echo", "from the future")
    assert site.dgpu("wait", early).code == 0
    long = site.submit("--timeout", "7200", "--", "sleep", "600")
    site.started(long)
    os.kill(site.supervisor.pid, signal.SIGTERM)
    site.supervisor.communicate(timeout=PATIENCE_SECONDS)
    site.shift(0)
    site.up()
    assert is_close(site.created(), time.time())
    created_at = dt.datetime.fromisoformat(site.task(early)["created_at"]).timestamp()
    assert is_close(created_at, time.time()), "the whole boot is shown right"
    assert site.good("logs", early).out == "from the future\n"
    task = site.task(long)
    assert (task["status"], task["attempt"]) == ("running", 1)


def test_a_suspend_counts_as_time_that_has_passed(site):
    """A suspend moves both clocks ahead equally: there is no error, and a time limit that ended during the suspend has
    ended.
    """
    site.up()
    site_time = site.created()
    limited = site.submit("--timeout", "3600", "--", "sleep", "600")
    endless = site.submit("--", "sleep", "600")
    for task_id in (limited, endless):
        site.started(task_id)
    site.shift(2 * 3_600, 2 * 3_600)
    assert site.dgpu("wait", limited).code == 124
    assert is_close(site.created(), site_time + 2 * 3_600)
    assert site.ready()["clock_jump_seconds"] == 0
    assert site.task(endless)["status"] == "running"
