"""For all tests: how long a random example takes says something about the machine, nothing about the code."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings

from dgpu.core_form import COMPILED, FORM

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be by all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all random examples of a run. Workers of pytest-xdist get it with the options."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbelow(1 << 32))


def pytest_sessionstart(session: pytest.Session) -> None:
    """First of all, so that a run that is killed has told it, too."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # workers have none
        terminal.write_line(f"random examples: --hypothesis-seed={session.config.option.hypothesis_seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A compiled core does not see what is patched into it: such tests run in a process with an interpreted one."""
    if FORM != COMPILED or pyfuncitem.get_closest_marker("patches_core") is None:
        return None
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, "DGPU_INTERPRETED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(told.stdout)
    assert "1 passed" in told.stdout
    return True
