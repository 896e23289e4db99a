"""Xids, memory errors and heat, as reported by the NVML of the tests."""

from __future__ import annotations

import pytest

from nvml_world import LOST, NOT_SUPPORTED, Card, Nvml

A = Card("GPU-a")


def faults(nvml: Nvml) -> list[tuple[str, str]]:
    return [(sample["fault"], sample["fault_cause"]) for sample in nvml.ok("sample", {})]


@pytest.fixture
def probing(nvml: Nvml) -> Nvml:
    nvml.world(A)
    nvml.ok("open")
    nvml.ok("list")
    assert faults(nvml) == [("", "")]
    return nvml


def test_an_xid_of_the_hardware_is_a_fault_until_the_card_is_checked(probing: Nvml) -> None:
    """A heartbeat may be lost: the next one must still contain the fault."""
    probing.world(A, more="xid GPU-a|1|79")
    for _ in range(3):
        ((fault, cause),) = faults(probing)
        assert "Xid 79" in fault
        assert cause == "xid"
    assert "Xid 79" in probing.ok("list")[0]["fault"], "list and samples must agree"
    assert probing.ok("examine", "GPU-a")["ok"] is True
    assert faults(probing) == [("", "")]


def test_a_second_xid_of_the_same_kind_is_news(probing: Nvml) -> None:
    probing.world(A, more="xid GPU-a|1|48")
    first = faults(probing)
    probing.world(A, more="xid GPU-a|1|48\nxid GPU-a|2|48")
    assert faults(probing) != first


def test_an_xid_that_comes_from_a_program_is_no_fault(probing: Nvml) -> None:
    probing.world(A, more="xid GPU-a|1|31\nxid GPU-a|2|13\nxid GPU-a|3|43")
    assert faults(probing) == [("", "")]
    assert probing.ok("program_xid", "GPU-a") == 43, "but it is told when the program has ended"
    assert probing.ok("program_xid", "GPU-a") == 0, "once"
    probing.world(A, more="xid GPU-a|4|31")
    assert probing.ok("program_xid", "GPU-a") == 31, "also without a sample in between"


def test_an_xid_of_a_card_that_is_lost_is_not_forgotten(probing: Nvml) -> None:
    probing.world(Card("GPU-a", code=LOST), more="xid GPU-a|1|79")
    ((_, cause),) = faults(probing)
    assert cause == "lost"
    probing.world(A)
    assert "Xid 79" in probing.ok("list")[0]["fault"]


def test_new_memory_errors_are_a_fault_and_old_ones_are_not(probing: Nvml) -> None:
    probing.world(A, more="ecc GPU-a|2")
    assert faults(probing) == [("", "")], "they were there when the agent came"
    probing.world(A, more="ecc GPU-a|3")
    ((fault, cause),) = faults(probing)
    assert cause == "ecc"
    assert "1 new memory error" in fault
    assert probing.ok("examine", "GPU-a")["ok"] is True
    assert faults(probing) == [("", "")]


def test_a_card_over_its_own_limit_is_too_hot_at_the_second_look_until_it_has_cooled(probing: Nvml) -> None:
    limit = "limit GPU-a|90"
    probing.world(Card("GPU-a", temp=93), more=limit)
    assert faults(probing) == [("", "")], "one reading may be wrong"
    assert faults(probing) == [("93 °C, over the limit of 90 °C", "hot")]
    probing.world(Card("GPU-a", temp=94), more=limit)
    assert faults(probing) == [("93 °C, over the limit of 90 °C", "hot")], "no new fault for a degree"
    probing.world(Card("GPU-a", temp=88), more=limit)
    assert faults(probing)[0][1] == "hot", "not cool enough yet"
    assert probing.ok("examine", "GPU-a") == {"ok": False, "words": "93 °C, over the limit of 90 °C"}
    probing.world(Card("GPU-a", temp=85), more=limit)
    assert faults(probing) == [("", "")]


def test_an_examination_of_a_lost_card_fails_with_the_reason(probing: Nvml) -> None:
    probing.world(Card("GPU-a", code=LOST))
    answer = probing.ok("examine", "GPU-a")
    assert answer["ok"] is False
    assert "lost" in answer["words"]


def test_a_driver_without_events_or_counters_is_read_all_the_same(nvml: Nvml) -> None:
    names = ("nvmlDeviceRegisterEvents", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTemperatureThreshold")
    nvml.world(A, more="\n".join(f"fail {name} {NOT_SUPPORTED}" for name in names))
    nvml.ok("open")
    nvml.ok("list")
    assert faults(nvml) == [("", "")]
