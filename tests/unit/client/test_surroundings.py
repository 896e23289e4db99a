"""The directory and the variables that a submit takes from the shell or program it is made in."""

from __future__ import annotations

import json

import pytest

from dgpu.client import Client, surroundings

SHELL = {
    "PATH": "/bin",
    "CONDA_PREFIX": "/conda",
    "PYTHONPATH": "lib",
    "HF_HOME": "/models",
    "LC_ALL": "C",
    "TZ": "UTC",
    "CUDA_VISIBLE_DEVICES": "0",
    "DGPU_TOKEN": "dgpu_secret",
    "HOME": "/home/ann",
    "MY_SETTING": "1",
}
DEFAULT = {"PATH", "CONDA_PREFIX", "PYTHONPATH", "HF_HOME", "LC_ALL", "TZ"}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "dgpu").mkdir()
    return tmp_path / "dgpu" / "client.yaml"


def test_variables_that_choose_the_program_are_sent_and_others_are_not(config):
    assert set(surroundings.sent_variables(SHELL)) == DEFAULT


def test_all_variables_are_all_but_the_token_and_the_gpus_of_this_machine():
    assert set(SHELL) - set(surroundings.all_variables(SHELL)) == {"CUDA_VISIBLE_DEVICES", "DGPU_TOKEN"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("client: {env: [MY_*]}", {"MY_SETTING"}),
        ("client: {env: [default, MY_*]}", DEFAULT | {"MY_SETTING"}),
        ("client: {env: [DGPU_TOKEN, '*']}", DEFAULT | {"HOME", "MY_SETTING"}),
        ("client: {env: []}", set()),
        ("client: {}", DEFAULT),
        ("", DEFAULT),
    ],
)
def test_the_users_configuration_changes_the_list(config, text, sent):
    config.write_text(text)
    assert set(surroundings.sent_variables(SHELL)) == sent


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("client: {env: PATH}", "client.env is 'PATH'"),
        ("client: {env: [1]}", "client.env is [1]"),
        ("client: {envs: []}", "expected only the keys client.env and client.notify"),
        ("client: [", "is not YAML"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(config, text, named):
    config.write_text(text)
    with pytest.raises(surroundings.BadSettings) as refused:
        surroundings.sent_variables(SHELL)
    assert str(config) in str(refused.value)
    assert named in str(refused.value)


def test_values_of_the_task_win_and_a_container_gets_nothing(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin")
    plain = surroundings.surrounded({"command": "true", "env": {"PATH": "/mine"}})
    assert (plain["workdir"], plain["env"]["PATH"]) == (str(tmp_path), "/mine")
    assert surroundings.surrounded({"command": "true", "workdir": "/data"})["workdir"] == "/data"
    labels = {"user": surroundings.login_name()}
    boxed = surroundings.surrounded({"command": "true", "image": "x"})
    assert boxed == {"command": "true", "image": "x", "labels": labels}
    assert surroundings.surrounded({"labels": {"user": "ann", "a": "b"}})["labels"] == {
        "user": "ann",
        "a": "b",
    }


def test_messages_about_each_task_are_a_setting_of_the_user(config):
    config.write_text("client: {notify: [end=slack]}")
    assert surroundings.surrounded({"image": "i"})["notify"] == ["end=slack"]
    assert surroundings.surrounded({"image": "i", "notify": "ops"})["notify"] == "ops"
    assert "PATH" in surroundings.sent_variables(SHELL)


def test_the_client_sends_them_unless_it_is_told_not_to(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bodies = []
    for clean in (False, True):
        client = Client("http://127.0.0.1:1", clean_env=clean)
        monkeypatch.setattr(client, "_do", lambda request: bodies.append(json.loads(request.body)))
        client.submit(command="true")
    assert bodies[0]["workdir"] == str(tmp_path)
    assert "PATH" in bodies[0]["env"]
    assert bodies[1] == {"command": "true"}
