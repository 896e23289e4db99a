"""What an agent says about itself is bounded before it reaches the state, the journal and other nodes' tasks."""

from __future__ import annotations

import pytest

from dgpu.service.machine.agent_words import Malformed, registration
from dgpu.wire.proto import agent_pb2 as pb


def registers(address: str) -> pb.Register:
    return pb.Register(node_id="n1", boot_id="boot", session_id="s", address=address)


@pytest.mark.parametrize(
    "address", ["", "n1", "gpu-1.lab.example", "10.0.0.7", "fe80::1%eth0", "[::1]", "a" * 253]
)
def test_an_address_that_other_nodes_can_dial_is_kept(address) -> None:
    assert registration(registers(address)).address == address


@pytest.mark.parametrize(
    "address", ["a" * 254, "a" * (1 << 20), "n1 n2", "n1;id", "$(id)", "n1\n", "\u00fcber"]
)
def test_any_other_address_is_refused_and_named(address) -> None:
    """It becomes MASTER_ADDR in the environment of tasks; a text cut at some length would lead elsewhere."""
    with pytest.raises(Malformed, match=r"address is .*expected a host name or IP address") as refused:
        registration(registers(address))
    assert len(str(refused.value)) < 300
