"""alerts.* of scheduler.yaml: what it becomes, and how mistakes are told without telling secrets."""

from __future__ import annotations

import sys

import pytest

from dgpu.entry.alert_targets import alert_options
from dgpu.entry.config import ConfigError, load_scheduler_config
from dgpu.entry.config_types import Alerts
from dgpu.service.alerts.options import AlertOptions


def load(tmp_path, text, **environ):
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    return load_scheduler_config(path, environ).alerts


def refusal(tmp_path, text, **environ):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, **environ)
    return str(refused.value)


def test_the_defaults_of_the_file_are_those_of_the_service():
    assert alert_options(Alerts()) == AlertOptions()


def test_switched_off_nobody_watches(tmp_path):
    assert alert_options(load(tmp_path, "alerts: {enabled: false}")) is None


def test_rules_targets_and_times_reach_the_service(tmp_path):
    (tmp_path / "url").write_text("https://hooks.example/T0ken\n")
    text = f"""
alerts:
  interval_seconds: 1
  group_seconds: 0
  rules:
    agent_offline: {{for_seconds: 30, severity: warning}}
    gpu_temperature: {{limit_c: 70}}
    queue_wait: {{enabled: false}}
    failure_rate: {{window_seconds: 120, min_tasks: 5, percent: 0.25}}
    disk_full: {{free_gib: 2}}
  webhooks:
    - {{name: ops, url_file: {tmp_path / "url"}, secret: shared}}
    - {{url: "http://127.0.0.1:1/x"}}
  notify:
    - {{url: "mailto://u:p@example.org"}}
  sending: {{attempts: 3, max_queue: 7}}
"""
    options = alert_options(load(tmp_path, text))
    rules = options.machine.rules
    assert (rules.agent_offline.for_ms, rules.agent_offline.severity) == (30_000, "warning")
    assert rules.gpu_temperature.limit_c == 70
    assert rules.queue_wait.enabled is False
    assert (rules.failure_rate.window_ms, rules.failure_rate.least_tasks) == (120_000, 5)
    assert rules.disk_full.free_bytes == 2 << 30
    assert [(each.name, each.kind, each.secret) for each in options.targets] == [
        ("ops", "webhook", "shared"),
        ("webhook-2", "webhook", ""),
        ("notify-1", "apprise", ""),
    ]
    assert options.targets[0].url == "https://hooks.example/T0ken"
    assert (options.sending.attempts, options.sending.queue) == (3, 7)
    assert options.machine.times.group_wait_ms == 0


def test_an_address_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPS_HOOK", "https://hooks.example/T0ken")
    (target,) = alert_options(load(tmp_path, "alerts: {webhooks: [{url_env: OPS_HOOK}]}")).targets
    assert target.url == "https://hooks.example/T0ken"
    monkeypatch.delenv("OPS_HOOK")
    text = refusal(tmp_path, "alerts: {webhooks: [{url_env: OPS_HOOK}]}")
    assert "alerts.webhooks[0].url_env: the environment has no variable OPS_HOOK" in text


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            "rules: {gpu_temperatur: {}}",
            "alerts.rules.gpu_temperatur: unknown key; did you mean gpu_temperature?",
        ),
        ("rules: {gpu_error: {severity: bad}}", "alerts.rules.gpu_error.severity: expected one of critical"),
        ("rules: {quota_usage: {percent: 90}}", "alerts.rules.quota_usage.percent: expected"),
        ("interval_seconds: 0", "alerts.interval_seconds: expected"),
        ("webhooks: [{}]", "alerts.webhooks[0].url: expected one of url, url_file, url_env, got 0"),
        ("webhooks: [{url: 'http://h/', url_env: X}]", "alerts.webhooks[0].url: expected one of"),
        (
            "webhooks: [{url: 'ftp://Geheim/'}]",
            "alerts.webhooks[0].url: expected a URL that begins with http",
        ),
        (
            "webhooks: [{url_file: /no/such/file}]",
            "alerts.webhooks[0].url_file: '/no/such/file' cannot be read",
        ),
        (
            "webhooks: [{url: 7, secret: Geheim}]",
            "alerts.webhooks[0].url: expected a text, got a value of type",
        ),
        ("webhooks: [{url: 'http://Geheim/', colour: 1}]", "alerts.webhooks[0].colour: unknown key"),
        ("webhooks: {url: 'http://Geheim/'}", "alerts.webhooks: expected a list"),
        (
            "webhooks: [{url: 'http://h/', secret: a, secret_env: b}]",
            "alerts.webhooks[0].secret: expected one of secret, secret_file, secret_env, got 2",
        ),
        (
            "webhooks: [{url: 'http://h/', name: a}, {url: 'http://i/', name: a}]",
            "alerts.webhooks[1].name: 'a' is",
        ),
        ("notify: [{url: 'bogus://Geheim'}]", "alerts.notify[0].url: expected a URL of apprise"),
        ("notify: [{url: Geheim}]", "alerts.notify[0].url: expected a URL of apprise"),
        (
            "sending: {retry_seconds: 10, max_retry_seconds: 1}",
            "alerts.sending.max_retry_seconds: is less than",
        ),
    ],
)
def test_a_mistake_stops_the_start_with_the_path_of_its_key_and_without_secrets(tmp_path, written, told):
    text = refusal(tmp_path, f"alerts: {{{written}}}")
    assert told in text
    assert "Geheim" not in text


def test_mail_without_the_package_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    text = refusal(tmp_path, "alerts: {notify: [{url: 'mailto://u:p@example.org'}]}")
    assert "alerts.notify[0].url: needs the package apprise" in text
    assert "pip install 'dgpu[notify]'" in text


def test_a_wrong_value_of_the_environment_is_not_shown_either(tmp_path):
    text = refusal(tmp_path, "", DGPU__ALERTS__WEBHOOKS="http://u:Geheim@h/")
    assert "alerts.webhooks: expected a list" in text
    assert "Geheim" not in text
