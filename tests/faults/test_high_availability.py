"""Each fault of `dgpu chaos` once, against one cluster of real processes. Longer: `dgpu chaos --minutes 60`."""

from __future__ import annotations

import os
import shutil

import pytest

from dgpu.entry.chaos.faults import FAULTS
from dgpu.entry.chaos.network import why_no_network
from dgpu.entry.chaos.run import Run, Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RATE = float(os.environ.get("DGPU_CHAOS_RATE", "50"))
KEPT_MASTER = ["stop-3", "kill-engine-leader", "kill-engine-follower", "kill-standby", "kill-agent"]
NEW_MASTER = ["kill-master", "kill-master-revoke", "kill-machine", "stop-7"]
OF_NETWORK = ["vanish-master", "deaf-master", "mute-master", "cut-standby", "cut-agent"]


@pytest.fixture(scope="module")
def run():
    """One cluster for all of them: faults follow each other as in a long run. At the end the whole history is good."""
    if shutil.which("etcd") is None:
        pytest.skip("no etcd in PATH (Debian: etcd-server)")
    settings = Settings(seed=1, faults=tuple(FAULTS), rate=RATE, network=not why_no_network())
    run = Run(settings, print)
    with run.cluster():
        yield run
        verdict = run.judge()
        assert verdict.wrong == ()
        assert verdict.submits > 0
        assert verdict.runs > 0


@pytest.mark.parametrize("fault", NEW_MASTER)
def test_another_scheduler_leads_and_nothing_is_lost(run, fault) -> None:
    done = run.strike(fault)
    assert done.wrong == ()
    assert done.takeover is not None
    assert done.takeover.new != done.takeover.old


@pytest.mark.parametrize("fault", KEPT_MASTER)
def test_a_small_fault_changes_nothing(run, fault) -> None:
    """A call of the SDK that fails is a finding, except while the master is paused."""
    assert run.strike(fault).wrong == ()


def test_a_hand_over_fails_no_call(run) -> None:
    done = run.strike("hand-over")
    assert done.wrong == ()
    assert done.failed_calls == 0
    assert done.takeover is not None


def test_without_a_majority_reads_answer_with_their_age_and_nothing_is_stored(run) -> None:
    """The checks of the round: no submit was acknowledged, each read had an age, no task failed or was requeued."""
    done = run.strike("lose-majority")
    assert done.wrong == ()
    assert done.longest_gap_s >= FAULTS["lose-majority"].lasts_s


@pytest.mark.parametrize("fault", OF_NETWORK)
def test_a_machine_that_packets_do_not_reach_does_no_harm(run, fault) -> None:
    if why := why_no_network():
        pytest.skip(why)
    done = run.strike(fault)
    assert done.wrong == ()
    if fault == "vanish-master":
        assert done.takeover is not None
        assert done.takeover.first_run_s is not None
