from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.core.model.settings import Settings
from dgpu.entry.config import ConfigError, known_keys, load_agent_config, load_scheduler_config
from dgpu.entry.config_types import AgentConfig, SchedulerConfig
from dgpu.wire.address import Address, parse_address

ROOT = Path(__file__).parents[3]


def scheduler(tmp_path: Path, text: str, **environ: str) -> SchedulerConfig:
    path = tmp_path / "scheduler.yaml"
    path.write_text(text)
    return load_scheduler_config(path, environ)


def agent(tmp_path: Path, text: str, **environ: str) -> AgentConfig:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load_agent_config(path, environ)


def refusal(load: Any, *arguments: Any, **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(*arguments, **environ)
    return str(refused.value)


def as_written(kind: type) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(known_keys(kind)))


def leaves(tree: dict[str, Any], known: dict[str, Any], parts: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = (*parts, key)
        if isinstance(value, dict) and ".".join(path) not in known:
            found |= leaves(value, known, path)
        else:
            found[".".join(path)] = value
    return found


@pytest.mark.parametrize(("name", "kind"), [("scheduler", SchedulerConfig), ("agent", AgentConfig)])
def test_the_example_file_holds_every_key_with_its_default(name: str, kind: type) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    known = as_written(kind)
    assert leaves(yaml.safe_load(path.read_text()), known) == known
    load = load_scheduler_config if name == "scheduler" else load_agent_config
    assert load(path, {}) == kind()


@pytest.mark.parametrize(
    ("title", "kind"), [("scheduler.yaml", SchedulerConfig), ("agent.yaml", AgentConfig)]
)
def test_the_documentation_lists_every_key_with_its_default(title: str, kind: type) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", section, re.MULTILINE))
    written = {key: yaml.safe_load(default) for key, default in rows.items()}
    assert written == as_written(kind)


def test_without_a_file_the_defaults_hold() -> None:
    assert load_scheduler_config(None, {}) == SchedulerConfig()
    assert load_agent_config(None, {}) == AgentConfig()


def test_defaults_agree_with_those_of_the_core() -> None:
    rules, settings = SchedulerConfig().scheduler, Settings()
    assert rules.default_task_timeout_seconds * 1000 == settings.default_timeout_ms
    assert rules.max_task_timeout_seconds * 1000 == settings.max_timeout_ms
    assert rules.retry_delay_seconds * 1000 == settings.retry_delay_ms
    assert rules.max_retry_delay_seconds * 1000 == settings.max_retry_delay_ms
    assert rules.max_waiting_tasks == settings.max_waiting
    assert rules.keep_finished_tasks == settings.keep_finished
    assert rules.keep_finished_seconds * 1000 == settings.keep_finished_ms


def test_a_section_whose_keys_are_all_commented_out_is_the_default(tmp_path: Path) -> None:
    assert scheduler(tmp_path, "server:\nscheduler:\n  # role: master\n") == SchedulerConfig()
    assert scheduler(tmp_path, "") == SchedulerConfig()


def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_one(tmp_path: Path) -> None:
    text = refusal(scheduler, tmp_path, "scheduler: {schedule_intervall: 3}\nsevrer: {}\n")
    assert "scheduler.schedule_intervall: unknown key; did you mean schedule_interval?" in text
    assert "sevrer: unknown key; did you mean server?" in text
    assert "scheduler.yaml" in text


@pytest.mark.parametrize(
    ("yaml_text", "line"),
    [
        ("server: {http_address: 8080}", "server.http_address: expected a text, got 8080 (int)"),
        (
            "scheduler: {snapshot_interval: soon}",
            "scheduler.snapshot_interval: expected a number, got 'soon' (str)",
        ),
        (
            "scheduler: {snapshot_interval: -1}",
            "scheduler.snapshot_interval: expected a number > 0.0, got -1 (int)",
        ),
        (
            "scheduler: {snapshot_interval: .nan}",
            "scheduler.snapshot_interval: expected a finite number, got nan",
        ),
        (
            "scheduler: {snapshot_interval: .inf}",
            "scheduler.snapshot_interval: expected a finite number, got inf",
        ),
        (
            "scheduler: {snapshot_interval: yes}",
            "scheduler.snapshot_interval: expected a number, got True (bool)",
        ),
        (
            "scheduler: {max_waiting_tasks: 1.5}",
            "scheduler.max_waiting_tasks: expected a whole number, got 1.5 (float)",
        ),
        ("scheduler: {role: boss}", "scheduler.role: expected one of master, standby, got 'boss' (str)"),
        (
            "storage: {journal_retention: {days: many}}",
            "storage.journal_retention.days: expected a number, got 'many'",
        ),
        ("server: 7", "server: expected a mapping of keys, got 7 (int)"),
        ("server: {allowed_hosts: [1]}", "server.allowed_hosts[0]: expected a text, got 1 (int)"),
        (
            "server: {allowed_hosts: ['*']}",
            "server.allowed_hosts[0]: '*' is a pattern, but the list takes only whole names",
        ),
        (
            "server: {allowed_hosts: ['a:1']}",
            "server.allowed_hosts[0]: expected a host name without port or scheme, such as gpu.example.org, got 'a:1'",
        ),
        ("- 1", "expected a mapping of sections, got [1] (list)"),
        ("server: {http_address: nowhere}", "server.http_address: expected host:port, got 'nowhere'"),
        ("server: {http_address: '127.0.0.1:99999'}", "server.http_address: expected host:port"),
        ("server: {http_address: '::1:80'}", "server.http_address: expected [address]:port for IPv6"),
        (
            "server: {http_address: '127.0.0.1:9090'}",
            "server.http_address: is the same as server.grpc_address",
        ),
        (
            "scheduler: {default_task_timeout_seconds: 99999}",
            "more than scheduler.max_task_timeout_seconds (86400)",
        ),
        (
            "agent: {task_lease_seconds: 5}",
            "agent.task_lease_seconds: is shorter than agent.heartbeat_timeout",
        ),
        ("logging: {output: ''}", "logging.output: expected stderr, stdout or a file"),
        (
            "storage: {snapshot_dir: state}",
            "storage.snapshot_dir: expected an absolute path such as /var/lib/dgpu or ~/dgpu, got 'state'",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_path_and_what_was_expected(
    tmp_path: Path, yaml_text: str, line: str
) -> None:
    assert line in refusal(scheduler, tmp_path, yaml_text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = refusal(scheduler, tmp_path, "server: {http_address: 1, x: 2}\nscheduler: {role: boss}\n")
    assert len(text.splitlines()) == 4


def test_all_that_is_wrong_in_lists_is_told_at_once_each_with_its_place_and_value(tmp_path: Path) -> None:
    told = refusal(
        scheduler,
        tmp_path,
        """
server: {allowed_hosts: [good, 7, [x]]}
tenants: [{id: a, weight: 0, pools: [fast]}, 3, {id: a b}, {id: ok}, {id: ok}]
scheduler: {estimates: {factors: {optimization: big, stability: 1.5}, models: {x: -1}}}
alerts: {webhooks: [{url: 7, colour: red}, {}], rules: {gpu_error: {severity: bad, enabled: 7}}}
quota: {online_percent: 0.6, batch_percent: 0.3}
""",
    )
    for line in (
        "server.allowed_hosts[1]: expected a text, got 7 (int)",
        "server.allowed_hosts[2]: expected a text, got ['x'] (list)",
        "tenants[0].weight: expected a number from 0.001 to 1000",
        "tenants[0].pools: expected online or batch",
        "tenants[1]: expected a mapping, got 3 (int)",
        "tenants[2].id: expected 1 to 64 letters",
        "tenants[4].id: 'ok' is listed twice",
        "scheduler.estimates.factors.optimization: expected a number, got 'big' (str)",
        "scheduler.estimates.models.x: expected a whole number >= 0, got -1 (int)",
        "alerts.webhooks[0].url: expected a text, got a value of type int",
        "alerts.webhooks[0].colour: unknown key; known keys are name, url,",
        "alerts.webhooks[1].url: expected one of url, url_file, url_env, got 0 of them",
        "alerts.rules.gpu_error.severity: expected one of critical, warning, info, got 'bad' (str)",
        "alerts.rules.gpu_error.enabled: expected true or false, got 7 (int)",
        "quota.batch_percent: is 0.3; with quota.online_percent (0.6) it must add up to 1",
    ):
        assert f"  {line}" in told
    assert len(told.splitlines()) == 16


def test_what_only_follows_from_another_mistake_is_not_told(tmp_path: Path) -> None:
    text = "server: {http_address: ':8080'}\nauth: {mode: nnone}\nquota: {online_percent: 2}\n"
    assert refusal(scheduler, tmp_path, text).splitlines()[1:] == [
        "  auth.mode: expected one of local, none, token, got 'nnone' (str)",
        "  quota.online_percent: expected a number <= 1.0, got 2 (int)",
    ]
    listed = "gpu: {detection_method: simulated, simulated: [{count: 2}, {model: 7}], gpu_ids: [1.5]}"
    assert refusal(agent, tmp_path, listed).splitlines()[1:] == [
        "  gpu.simulated[0].model: is missing",
        "  gpu.simulated[1].model: expected a text, got 7 (int)",
        "  gpu.gpu_ids[0]: expected a whole number or a text, got 1.5 (float)",
    ]


def test_a_file_that_is_wrong_from_end_to_end_does_not_flood_the_terminal(tmp_path: Path) -> None:
    text = refusal(scheduler, tmp_path, f"server: {{allowed_hosts: {list(range(1_000))}}}")
    assert text.splitlines()[-1] == "  and 950 more"


@pytest.mark.parametrize(
    ("yaml_text", "words"),
    [
        ("server: {http_address: 'a:1', http_address: 'b:1'}", "duplicate key 'http_address'"),
        ("server: {}\nserver: {}\n", "line 2, column 1"),
        ("server: [", "line "),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("\x00", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("a: &a [*a]", "unknown key"),
        ("x: " + "y" * 1_100_000, "larger than"),
    ],
)
def test_a_file_that_is_not_sound_yaml_is_refused_with_the_place(
    tmp_path: Path, yaml_text: str, words: str
) -> None:
    assert words in refusal(scheduler, tmp_path, yaml_text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml:\s+cannot be read"):
        load_scheduler_config(tmp_path / "nowhere.yaml", {})


@pytest.mark.parametrize(
    "yaml_text",
    [
        "auth: {mode: token}",
    ],
)
def test_what_this_version_cannot_do_is_refused_instead_of_ignored(tmp_path: Path, yaml_text: str) -> None:
    assert "not available yet" in refusal(scheduler, tmp_path, yaml_text)


@pytest.mark.parametrize(
    ("yaml_text", "words"),
    [
        (
            "quota: {online_percent: 0.6, batch_percent: 0.3}",
            "quota.batch_percent: is 0.3; with quota.online_percent (0.6) it must add up to 1",
        ),
        ("quota: {online_percent: 1.1}", "quota.online_percent: expected"),
        ("quota: {mode: loose}", "quota.mode: expected one of strict, borrow"),
        ("quota: {fair_share_half_life_hours: 0}", "quota.fair_share_half_life_hours: expected"),
        ("tenants: [{id: a}, {id: a}]", "tenants[1].id: 'a' is listed twice"),
        ("tenants: [{max_gpus: 1}]", "tenants[0].id: required"),
        ("tenants: [{id: a, weight: 0}]", "tenants[0].weight: expected a number from 0.001 to 1000"),
        ("tenants: [{id: a, weight: -1}]", "tenants[0].weight: expected"),
        ("tenants: [{id: a, pools: [fast]}]", "tenants[0].pools: expected online or batch"),
        (
            "tenants: [{id: a, max_gpus: 1, guaranteed_gpus: 2}]",
            "tenants[0].guaranteed_gpus: expected at most max_gpus (1)",
        ),
        ("tenants: [{id: a, max_gpu: 1}]", "tenants[0].max_gpu: this field is not known"),
        ("tenants: [{id: 'a b'}]", "tenants[0].id: expected 1 to 64 letters"),
        ("tenants: [{id: a, max_priority: urgent}]", "tenants[0].max_priority: expected"),
    ],
)
def test_a_quota_or_tenant_that_makes_no_sense_stops_the_start(
    tmp_path: Path, yaml_text: str, words: str
) -> None:
    assert words in refusal(scheduler, tmp_path, yaml_text)


def test_tasks_that_run_nothing_never_get_a_real_card(tmp_path: Path) -> None:
    text = refusal(agent, tmp_path, "executor: {execution_method: simulated}")
    assert "executor.execution_method" in text
    assert "needs gpu.detection_method: simulated" in text


def test_the_settings_of_a_small_machine_are_accepted(tmp_path: Path) -> None:
    config = scheduler(
        tmp_path,
        "quota: {mode: borrow, reclaim: wait}\nagent: {lease_action: never}\n"
        "scheduler: {default_task_timeout_seconds: 0, max_task_timeout_seconds: 0}\n",
    )
    assert config.quota.mode == "borrow"
    assert config.scheduler.max_task_timeout_seconds == 0


@pytest.mark.parametrize("address", [":8080", "0.0.0.0:8080", "10.1.2.3:8080", "[::]:8080", "gpu-box:8080"])
@pytest.mark.parametrize("key", ["http_address", "grpc_address"])
def test_an_address_beyond_loopback_needs_auth_mode_none_written_out(
    tmp_path: Path, key: str, address: str
) -> None:
    text = refusal(scheduler, tmp_path, f"server: {{{key}: '{address}'}}")
    assert f"server.{key}" in text
    assert "auth.mode: none" in text
    allowed = scheduler(tmp_path, f"server: {{{key}: '{address}'}}\nauth: {{mode: none}}")
    assert getattr(allowed.server, key) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:8080", "[::1]:8080", "127.9.9.9:1"])
def test_loopback_needs_nothing(tmp_path: Path, address: str) -> None:
    assert scheduler(tmp_path, f"server: {{http_address: '{address}'}}").server.http_address == address


def test_the_environment_overrides_the_file_with_the_keys_own_type(tmp_path: Path) -> None:
    config = scheduler(
        tmp_path,
        "scheduler: {snapshot_interval: 7}\nserver:\n",
        DGPU__SCHEDULER__SNAPSHOT_INTERVAL="2.5",
        DGPU__SERVER__HTTP_ADDRESS="127.0.0.1:1234",
        DGPU__STORAGE__JOURNAL_RETENTION__DAYS="3",
        DGPU__SERVER__ALLOWED_HOSTS='["gpu.example"]',
        DGPU__LOGGING__LEVEL="debug",
        DGPU__LOGGING__OUTPUT="123",
    )
    assert config.scheduler.snapshot_interval == 2.5
    assert config.server.http_address == "127.0.0.1:1234"
    assert config.storage.journal_retention.days == 3
    assert config.server.allowed_hosts == ("gpu.example",)
    assert config.logging.level == "debug"
    assert config.logging.output == "123"


def test_an_override_that_names_no_key_stops_the_start(tmp_path: Path) -> None:
    text = refusal(scheduler, tmp_path, "", DGPU__SCHEDULER__SNAPSHOT_INTERVALL="3")
    assert "DGPU__SCHEDULER__SNAPSHOT_INTERVALL: unknown key" in text
    assert "did you mean scheduler.snapshot_interval?" in text


def test_a_wrong_override_is_told_with_its_name(tmp_path: Path) -> None:
    text = refusal(scheduler, tmp_path, "", DGPU__SCHEDULER__SNAPSHOT_INTERVAL="often")
    assert "scheduler.snapshot_interval: expected a number, got 'often' (str)" in text
    assert "(from DGPU__SCHEDULER__SNAPSHOT_INTERVAL)" in text


def test_an_override_under_something_that_is_no_section_is_refused(tmp_path: Path) -> None:
    assert "is not a mapping" in refusal(scheduler, tmp_path, "server: 3", DGPU__SERVER__HTTP_ADDRESS="a:1")


def test_overrides_of_the_other_service_are_passed_over(tmp_path: Path) -> None:
    """`dgpu up` gives both services one environment."""
    environ = {"DGPU__GPU__DETECTION_METHOD": "nvml", "DGPU__AGENT__TASK_LEASE_SECONDS": "90"}
    assert scheduler(tmp_path, "", **environ).agent.task_lease_seconds == 90
    assert agent(tmp_path, "", **environ).gpu.detection_method is DetectionMethod.NVML


def test_simulated_cards_are_a_list_or_a_short_text(tmp_path: Path) -> None:
    listed = agent(
        tmp_path, "gpu: {detection_method: simulated, simulated: [{model: V100, count: 4, memory_mb: 99}]}"
    )
    assert listed.gpu.simulated == (SimulatedCards(model="V100", count=4, memory_mb=99),)
    short = agent(tmp_path, "gpu: {detection_method: simulated}", DGPU__GPU__SIMULATED="4xV100")
    assert short.gpu.simulated == "4xV100"


@pytest.mark.parametrize(
    ("yaml_text", "line"),
    [
        (
            "gpu: {simulated: [{model: V100, cuont: 4}]}",
            "gpu.simulated[0].cuont: unknown key; did you mean count?",
        ),
        ("gpu: {detection_method: simulated}", "gpu.simulated: expected at least one GPU"),
        (
            "gpu: {detection_method: simulated, simulated: 0xV100}",
            "gpu.simulated: V100: count must be at least 1",
        ),
        (
            "gpu: {detection_method: magic}",
            "expected one of auto, nvml, nvidia-smi, simulated, got 'magic' (str)",
        ),
        ("agent: {simulated_nodes: 3}", "agent.simulated_nodes: more than 1 needs"),
        ("agent: {id: 'a b'}", "agent.id: expected a text matching regex"),
        ("scheduler: {master_address: ':9090'}", "scheduler.master_address: expected the host and port"),
        ("scheduler: {max_retry_interval: 0.5}", "scheduler.max_retry_interval: is less than"),
        (
            "gpu: {gpu_ids: [0, -1]}",
            "gpu.gpu_ids[1]: expected an index of 0 or more, or a UUID, got -1",
        ),
        ("gpu: {reserved_gpu_ids: ['-2']}", "gpu.reserved_gpu_ids[0]: expected an index of 0 or more"),
        ("gpu: {gpu_ids: ['']}", "gpu.gpu_ids[0]: expected an index of 0 or more, or a UUID, got ''"),
        (
            "executor: {work_dir: tasks}",
            "executor.work_dir: expected an absolute path such as /var/lib/dgpu or ~/dgpu, got 'tasks'",
        ),
        ("executor: {work_dir: ''}", "executor.work_dir: expected an absolute path"),
        ("executor: {work_dir: ~no-such-user/x}", "got '~no-such-user/x'"),
    ],
)
def test_a_wrong_value_of_the_agent_is_told(tmp_path: Path, yaml_text: str, line: str) -> None:
    assert line in refusal(agent, tmp_path, yaml_text)


def test_a_directory_may_be_in_the_home(tmp_path: Path) -> None:
    assert agent(tmp_path, "executor: {work_dir: ~/tasks}").executor.work_dir == "~/tasks"


def test_cards_are_named_by_index_or_uuid(tmp_path: Path) -> None:
    config = agent(tmp_path, "gpu: {gpu_ids: [0, GPU-abc], reserved_gpu_ids: [3]}")
    assert (config.gpu.gpu_ids, config.gpu.reserved_gpu_ids) == ((0, "GPU-abc"), (3,))


def test_addresses_are_split_into_host_and_port() -> None:
    assert parse_address(":80") == Address(host="", port=80)
    assert parse_address("[::1]:80") == Address(host="::1", port=80)
