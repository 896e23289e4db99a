from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.service.machine.contact import AgentRules
from dgpu.service.options import HttpTls, MachineOptions, OptionsRefused, ServiceOptions, check_options
from dgpu.wire.address import Address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_word_on_access(host: str) -> None:
    check_options(ServiceOptions(data_dir=Path("d"), http=Address(host=host, port=1)))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.168.1.4", "gpu.example.org"])
@pytest.mark.parametrize("which", ["http", "grpc"])
def test_beyond_loopback_it_does_not_start_unless_that_is_written_out(host: str, which: str) -> None:
    address = {which: Address(host=host, port=1)}
    with pytest.raises(
        OptionsRefused, match=f"server.{which}_address: .* can be reached from other machines"
    ):
        check_options(ServiceOptions(data_dir=Path("d"), **address))
    check_options(ServiceOptions(data_dir=Path("d"), auth_mode="none", **address))
    tls = (
        {"http_tls": HttpTls()}
        if which == "http"
        else {"machines": MachineOptions(join=Address(host="h", port=2))}
    )
    check_options(ServiceOptions(data_dir=Path("d"), **address, **tls))


def test_a_lease_shorter_than_the_heartbeat_timeout_is_refused() -> None:
    with pytest.raises(OptionsRefused, match="task_lease_seconds"):
        check_options(ServiceOptions(data_dir=Path("d"), rules=AgentRules(task_lease_ms=5_000)))
