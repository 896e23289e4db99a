"""`executor.docker` of agent.yaml."""

from __future__ import annotations

import pytest

from dgpu.entry.agent import agent_options
from dgpu.entry.config import ConfigError, load_agent_config


def loaded(tmp_path, text):
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    return load_agent_config(file)


def test_containers_are_off_unless_the_method_is_docker(tmp_path) -> None:
    assert agent_options(loaded(tmp_path, "executor: {docker: {default_image: x}}")).containers is None
    text = "executor: {execution_method: docker, work_dir: /w, docker: {allowed_mounts: [/data, '/m:ro']}}"
    containers = agent_options(loaded(tmp_path, text)).containers
    assert containers is not None
    assert containers.allowed_mounts == ("/data", "/m:ro")
    assert containers.hidden == ("/w", "/w/tls", "/var/run/docker.sock")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("executor: {docker: {socket: ''}}", "executor.docker.socket"),
        ("executor: {docker: {socket: 'tcp://x:1'}}", "executor.docker.socket"),
        ("executor: {docker: {auth_file: auth.json}}", "executor.docker.auth_file"),
        ("executor: {docker: {default_image: 'a b'}}", "executor.docker.default_image"),
        ("executor: {docker: {allowed_mounts: [/]}}", "executor.docker.allowed_mounts[0]"),
        ("executor: {docker: {allowed_mounts: [/a, data]}}", "executor.docker.allowed_mounts[1]"),
        ("executor: {docker: {allowed_mounts: ['/a/../..']}}", "executor.docker.allowed_mounts[0]"),
        ("executor: {docker: {user: '0:0'}}", "executor.docker.user"),
        ("executor: {docker: {user: '1000:0'}}", "executor.docker.user"),
        ("executor: {docker: {user: root}}", "executor.docker.user"),
        ("executor: {docker: {network: host}}", "executor.docker.network"),
        ("executor: {docker: {network: 'container:x'}}", "executor.docker.network"),
        ("executor: {docker: {privileged: true}}", "executor.docker.privileged"),
        ("agent: {labels: {dgpu.containers: docker}}", "agent.labels.dgpu.containers"),
    ],
)
def test_a_bad_value_is_named(tmp_path, text, path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert f"{path}:" in str(refused.value)
