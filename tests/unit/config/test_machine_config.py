"""Keys about certificates of machines, and where agents may talk in plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.agent.options import PAIR_FILE, TlsOptions
from dgpu.entry.agent import agent_options
from dgpu.entry.config import ConfigError, load_agent_config, load_scheduler_config
from dgpu.entry.scheduler import service_options
from dgpu.service.options import MachineOptions, OptionsRefused, ServiceOptions, check_options
from dgpu.wire.address import Address


def problem(**environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_scheduler_config(None, {f"DGPU__{name}": value for name, value in environ.items()})
    return str(refused.value)


@pytest.mark.parametrize("address", [":9090", "0.0.0.0:9090", "10.0.0.1:9090", "gpu.example:9090"])
def test_plain_text_for_agents_beyond_loopback_needs_auth_mode_none(address: str) -> None:
    text = problem(SERVER__GRPC_ADDRESS=address)
    assert "server.grpc_address" in text
    assert "server.grpc_tls: true" in text
    loaded = load_scheduler_config(None, {"DGPU__SERVER__GRPC_ADDRESS": address, "DGPU__AUTH__MODE": "none"})
    assert service_options(loaded).machines is None


def test_with_tls_agents_of_other_machines_may_connect() -> None:
    environ = {"DGPU__SERVER__GRPC_ADDRESS": ":9090", "DGPU__SERVER__GRPC_TLS": "true"}
    options = service_options(load_scheduler_config(None, environ))
    assert options.machines == MachineOptions(
        join=Address(host="", port=9091), certificate_lifetime_s=2_592_000
    )
    check_options(options)


def test_tls_for_agents_does_not_open_the_port_for_people() -> None:
    text = problem(SERVER__HTTP_ADDRESS=":8080", SERVER__GRPC_TLS="true")
    assert "server.http_address" in text


def test_a_service_without_a_file_follows_the_same_rule(tmp_path: Path) -> None:
    with pytest.raises(OptionsRefused, match="plain text"):
        check_options(ServiceOptions(data_dir=tmp_path, grpc=Address(host="", port=9090)))


def test_an_address_for_joining_needs_tls_and_a_free_port_number() -> None:
    assert "needs server.grpc_tls: true" in problem(SERVER__JOIN_ADDRESS="127.0.0.1:9999")
    assert "no port follows 65535" in problem(SERVER__GRPC_ADDRESS="127.0.0.1:65535", SERVER__GRPC_TLS="true")
    assert "expected host:port" in problem(SERVER__JOIN_ADDRESS="nowhere", SERVER__GRPC_TLS="true")


def test_an_agent_uses_tls_once_its_machine_has_joined(tmp_path: Path) -> None:
    environ = {"DGPU__EXECUTOR__WORK_DIR": str(tmp_path), "DGPU__SCHEDULER__TLS__RENEW_BEFORE_SECONDS": "7"}
    assert agent_options(load_agent_config(None, environ)).tls is None
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / PAIR_FILE).touch()
    tls = agent_options(load_agent_config(None, environ)).tls
    assert tls == TlsOptions(directory=tmp_path / "tls", renew_before_s=7)
