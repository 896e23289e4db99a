"""The check of a card that comes back."""

from __future__ import annotations

import subprocess
import sys

from dgpu.agent.probe.check import check_card
from dgpu.agent.probe.models import SimulatedCards
from dgpu.agent.probe.simulated import SimulatedProbe
from dgpu.agent.probe.touch import CANNOT_TRY
from dgpu.core.model.ids import NodeId


def one_card() -> tuple[SimulatedProbe, str]:
    probe = SimulatedProbe(node_id=NodeId("n1"), cards=(SimulatedCards(model="V100"),))
    return probe, probe.list_gpus()[0].id


def test_a_simulated_card_is_well_unless_it_was_made_ill() -> None:
    probe, card = one_card()
    assert check_card(probe, card).ok
    probe.set_hidden_fault(card, "burnt")
    found = check_card(probe, card)
    assert (found.ok, found.words) == (False, "burnt")


def test_an_xid_stands_until_the_check_and_not_beyond() -> None:
    probe, card = one_card()
    probe.raise_xid(card, 79)
    assert "Xid 79" in probe.sample({})[0].fault
    assert "Xid 79" in probe.sample({})[0].fault
    assert probe.list_gpus()[0].fault_cause == "xid"
    assert check_card(probe, card).ok
    assert probe.sample({})[0].fault == ""


def test_memory_errors_and_heat_are_told() -> None:
    probe, card = one_card()
    probe.sample({})
    probe.add_memory_errors(card, 2)
    assert probe.sample({})[0].fault_cause == "ecc"
    check_card(probe, card)
    probe.set_heat(card, 90)
    probe.sample({})
    assert probe.sample({})[0].fault_cause == "hot"
    assert not check_card(probe, card).ok
    probe.set_heat(card, 0)
    assert probe.sample({})[0].fault == ""


def test_the_operators_own_command_sees_the_card_and_decides() -> None:
    probe, card = one_card()
    assert check_card(probe, card, 'test "$CUDA_VISIBLE_DEVICES" = ' + card).ok
    found = check_card(probe, card, "echo no such luck; exit 3")
    assert not found.ok
    assert found.words == "gpu.check_command ended with code 3: no such luck"


def test_a_command_that_hangs_is_killed() -> None:
    probe, card = one_card()
    found = check_card(probe, card, "sleep 600", timeout_seconds=0.2)
    assert (found.ok, found.words) == (False, "gpu.check_command had no result after 0.2 s")


def test_a_node_without_a_probe_cannot_say() -> None:
    assert not check_card(None, "GPU-1").ok


def test_without_a_cuda_library_memory_is_not_tried_and_that_is_said(tmp_path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "dgpu.agent.probe.touch"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != CANNOT_TRY:
        return  # this machine has a driver: what it says is not for us to judge
    assert "no CUDA driver library" in done.stdout
