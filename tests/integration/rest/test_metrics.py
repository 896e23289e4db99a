"""The metrics for Prometheus: every promised name, text that Prometheus' own parser accepts, correct numbers."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dgpu.core.commands import LoseNode, ReleaseNode, SetTenant
from dgpu.core.model.ids import GpuId, NodeId, TenantId
from dgpu.core.model.settings import Settings
from dgpu.core.model.tenant import Tenant
from dgpu.service.access.principal import owner
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.metrics.cluster import MAX_TENANTS
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.scrape import Scrapes
from rest_world import TOKEN, RestWorld

PROMISED = {  # by the contract; to be extended, never renamed
    "task_submitted_total": {"priority"},
    "task_scheduled_total": {"priority"},
    "task_pending_total": set(),
    "task_running_total": set(),
    "task_finished_total": {"status"},
    "gpu_total": set(),
    "gpu_idle_total": set(),
    "gpu_busy_total": set(),
    "gpu_offline_total": set(),
    "gpu_utilization": {"gpu_id", "model"},
    "quota_online_limit": set(),
    "quota_online_used": set(),
    "quota_batch_limit": set(),
    "quota_batch_used": set(),
    "scheduler_is_master": set(),
    "agent_count": {"status"},
    "scheduler_queue_size": set(),
    "scheduler_queue_wait_seconds_bucket": {"le"},
    "scheduler_queue_wait_seconds_count": set(),
    "scheduler_schedule_total": set(),
    "scheduler_schedule_failures": set(),
    "gpu_memory_used_bytes": {"gpu_id"},
    "gpu_memory_total_bytes": {"gpu_id"},
    "gpu_utilization_percent": {"gpu_id"},
    "gpu_temperature_celsius": {"gpu_id"},
    "gpu_tasks_total": {"gpu_id"},
    "scheduler_decision_seconds_bucket": {"le"},
    "scheduler_pass_seconds_bucket": {"le"},
    "journal_fsync_seconds_bucket": {"le"},
    "journal_group_events_bucket": {"le"},
    "sse_clients": set(),
    "agent_stream_unsent": set(),
    "pool_gpus_used": {"pool"},
    "tenant_gpus_used": {"tenant"},
    "learned_memory_estimates": set(),
}


class Scrape:
    def __init__(self, world: RestWorld) -> None:
        self.reply = world.ask("GET", "/metrics")
        assert self.reply.status == 200, self.reply
        self.text = self.reply.raw.decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.declared = set(re.findall(r"^# TYPE (\S+)", self.text, re.MULTILINE))
        self.samples = [
            sample._replace(name=self._as_told(sample.name))
            for family in self.families
            for sample in family.samples
        ]

    def _as_told(self, name: str) -> str:
        """The parser gives every counter the ending of newer formats."""
        without = name.removesuffix("_total")
        return without if name not in self.declared and without in self.declared else name

    def value(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == name]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RestWorld]:
    with RestWorld(tmp_path) as world:
        yield world


def measure(world: RestWorld, gpu: str, **values: int | None) -> None:
    async def put() -> None:
        world.runtime.telemetry[GpuId(gpu)] = GpuSample(at=1, **values)

    world.run(put())


def test_every_promised_name_is_there_with_its_labels(world: RestWorld) -> None:
    world.add_node("n1", gpus=2)
    measure(
        world,
        "GPU-n1-0",
        utilization_percent=50,
        memory_used_mb=1,
        memory_foreign_mb=0,
        temperature_c=40,
        power_w=90,
    )
    world.submit()
    scrape = Scrape(world)
    assert scrape.reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for name, labels in PROMISED.items():
        found = scrape.labels(name)
        assert found, f"{name} is missing"
        assert all(labels <= each.keys() for each in found), (name, found)
    assert "predicted_start_error_seconds" in scrape.declared  # told as soon as there is one


def test_a_card_without_sensors_has_no_samples_of_them(world: RestWorld) -> None:
    """A 0 would lower every mean that is made of them."""
    world.add_node("n1", gpus=2)
    measure(world, "GPU-n1-0", utilization_percent=50, temperature_c=40, power_w=90, memory_used_mb=7)
    measure(world, "GPU-n1-1")
    scrape = Scrape(world)
    for name in (
        "gpu_utilization",
        "gpu_utilization_percent",
        "gpu_temperature_celsius",
        "gpu_power_watts",
        "gpu_memory_used_bytes",
    ):
        assert [each["gpu_id"] for each in scrape.labels(name)] == ["GPU-n1-0"], name
    assert len(scrape.labels("gpu_memory_total_bytes")) == 2


def test_no_family_is_told_twice_and_no_sample_either(world: RestWorld) -> None:
    world.add_node("n1", gpus=2)
    scrape = Scrape(world)
    heads = re.findall(r"^# TYPE (\S+)", scrape.text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in scrape.samples]
    assert len(keys) == len(set(keys))
    assert not any("task" in label for sample in scrape.samples for label in sample.labels)


def test_the_numbers_follow_what_happens(world: RestWorld) -> None:
    world.add_node("n1", gpus=2)
    world.submit(priority="high")
    world.submit(priority=55)
    world.submit(gpu_count=2)
    running = Scrape(world)
    assert running.value("task_submitted_total", priority="high") == 1
    assert running.value("task_submitted_total", priority="normal") == 2
    assert running.value("task_scheduled_total", priority="high") == 1
    assert running.value("task_running_total") == 2
    assert running.value("scheduler_queue_size") == running.value("task_pending_total") == 1
    assert running.value("gpu_busy_total") == 2
    assert running.value("gpu_tasks_total", gpu_id="GPU-n1-0") == 1
    assert running.value("quota_online_used") == running.value("pool_gpus_used", pool="online") == 1
    assert running.value("pool_tasks_waiting", pool="batch") == 1
    assert running.value("tenant_tasks_waiting", tenant="default") == 1
    assert running.value("scheduler_queue_wait_seconds_count", pool="online") == 1
    assert running.value("scheduler_decision_seconds_count") == 2
    groups = running.value("journal_groups_total")
    assert (
        running.value("journal_fsync_seconds_count") == running.value("journal_group_events_count") == groups
    )

    world.finish_running(exit_code=3)
    over = Scrape(world)
    assert over.value("task_finished_total", status="failed") == 2
    assert over.value("task_scheduled_total", priority="normal") == 2  # the third got its turn
    assert over.value("task_ids_total") == 3


def test_a_task_that_is_tried_again_counts_as_a_failed_placement(world: RestWorld) -> None:
    world.add_node("n1", gpus=1)
    world.submit()
    world.execute(LoseNode(node_id=NodeId("n1"), reason="a test"))
    world.execute(ReleaseNode(node_id=NodeId("n1"), reason="a test"))
    scrape = Scrape(world)
    assert scrape.value("scheduler_schedule_total") == 1
    assert scrape.value("scheduler_schedule_failures") == 1
    assert sum(sample.value for sample in scrape.samples if sample.name == "task_requeued_total") == 1
    assert scrape.value("gpu_offline_total") == 1
    assert scrape.value("agent_count", status="offline") == 1


def test_a_gpu_out_of_reach_has_no_stale_readings(world: RestWorld) -> None:
    world.add_node("n1", gpus=1)
    measure(world, "GPU-n1-0", utilization_percent=80, memory_used_mb=3, temperature_c=61, power_w=200)
    here = Scrape(world)
    assert here.value("gpu_utilization", gpu_id="GPU-n1-0") == 0.8
    assert here.value("gpu_utilization_percent", gpu_id="GPU-n1-0") == 80
    assert here.value("gpu_memory_used_bytes", gpu_id="GPU-n1-0") == 3 << 20
    assert here.value("gpu_temperature_celsius", gpu_id="GPU-n1-0") == 61
    world.execute(LoseNode(node_id=NodeId("n1"), reason="a test"))
    gone = Scrape(world)
    assert gone.labels("gpu_utilization") == []
    assert gone.value("gpu_memory_total_bytes", gpu_id="GPU-n1-0") == 32_768 << 20


@pytest.mark.parametrize("model", ['say "hi"', "back\\slash", "{x=1}", "größer 😀", "a,b"])
def test_a_label_may_hold_anything(world: RestWorld, model: str) -> None:
    """Names of models come from drivers; one of them must not break the scrape of all."""
    world.add_node("n1", gpus=1, model=model)
    assert Scrape(world).labels("gpu_memory_total_bytes")[0]["model"] == model


def test_tenants_are_bounded(tmp_path: Path) -> None:
    """A label for each of ten thousand tenants would overload any metrics store."""
    number = MAX_TENANTS + 30
    with RestWorld(tmp_path, settings=Settings(creates_tenants=True)) as world:
        world.add_node("n1", gpus=1)
        for tenant in range(number):
            world.submit(tenant_id=f"t{tenant}")
        scrape = Scrape(world)
        names = [labels["tenant"] for labels in scrape.labels("tenant_tasks_waiting")]
        assert len(names) == MAX_TENANTS + 1
        assert names[0] == "t0"  # it holds the GPU
        assert names[-1] == "(other)"
        waiting = [sample.value for sample in scrape.samples if sample.name == "tenant_tasks_waiting"]
        assert sum(waiting) == number - 1


def test_a_tenant_limit_is_told_where_there_is_one(world: RestWorld) -> None:
    world.execute(SetTenant(tenant=Tenant(id=TenantId("vision"), max_gpus=4)))
    assert Scrape(world).value("tenant_gpus_limit", tenant="vision") == 4


def test_refusals_are_counted_by_their_code(world: RestWorld) -> None:
    world.add_node("n1", gpus=1)
    assert world.ask("POST", "/api/v1/tasks", {"command": "true", "gpu_count": 9}).status == 422
    assert Scrape(world).value("command_refused_total", code="never_fits") == 1


def test_listeners_are_counted(world: RestWorld) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
    connection.request("GET", "/api/v1/events")
    connection.getresponse().read(1)  # the opening has come, so it listens
    assert Scrape(world).value("sse_clients") == 1
    connection.close()


def test_many_who_ask_at_once_share_an_answer(world: RestWorld) -> None:
    """A dozen scrapers by mistake must not cost a dozen times as much."""
    world.add_node("n1", gpus=8)
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: world.ask("GET", "/metrics"), range(10)))
    assert {reply.status for reply in replies} == {200}

    async def ask_at_once() -> list[bytes]:
        scrapes = Scrapes(Backend(world.runtime, world.views, world.history, world.output, world.options))
        asked = [asyncio.create_task(scrapes.answer(owner("root", "uid"))) for _ in range(10)]
        return await asyncio.gather(*asked)

    before = Scrape(world).value("scheduler_scrapes_total")
    bodies = world.run(ask_at_once())
    assert all(body.startswith(b"# HELP") for body in bodies)
    after = Scrape(world).value("scheduler_scrapes_total")
    assert after - before <= 1 + 2  # our own look before, and two for the ten


def test_counters_never_go_down_while_the_scheduler_runs(world: RestWorld) -> None:
    world.add_node("n1", gpus=2)
    world.submit()
    before = Scrape(world)
    for _ in range(3):
        world.submit()
        world.finish_running()
    after = Scrape(world)
    counters = set(re.findall(r"^# TYPE (\S+) counter", before.text, re.MULTILINE))
    assert len(counters) > 10
    now = {(sample.name, tuple(sample.labels.items())): sample.value for sample in after.samples}
    for sample in before.samples:
        if sample.name in counters or sample.name.endswith(("_bucket", "_sum")):
            assert now[sample.name, tuple(sample.labels.items())] >= sample.value, sample


def test_metrics_take_no_parameters(world: RestWorld) -> None:
    reply = world.ask("GET", "/metrics?name=gpu_total")
    assert (reply.status, reply.body["code"]) == (400, "invalid_query")


def test_strangers_need_the_token(tmp_path: Path) -> None:
    """Prometheus mostly runs as a user of its own."""
    with RestWorld(tmp_path) as world:
        world.access._trusted = {}
        assert world.ask("GET", "/metrics").status == 401
        assert world.ask("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200


def test_the_short_form_says_the_same(world: RestWorld) -> None:
    world.add_node("n1", gpus=2)
    measure(world, "GPU-n1-0", utilization_percent=80, memory_used_mb=100, temperature_c=61, power_w=200)
    measure(world, "GPU-n1-1", utilization_percent=40, memory_used_mb=50, temperature_c=55, power_w=100)
    world.submit()
    world.submit(gpu_count=2)
    told = world.ask("GET", "/api/monitor/metrics").body
    assert told["gpus"]["total"] == 2
    assert (told["gpus"]["busy"], told["gpus"]["idle"]) == (1, 1)
    assert told["gpus"]["utilization_percent"] == 60
    assert told["gpus"]["memory_used_mb"] == 150
    assert told["gpus"]["temperature_max_c"] == 61
    assert (told["tasks"]["running"], told["tasks"]["pending"], told["tasks"]["submitted"]) == (1, 1, 2)
    assert told["wait_seconds"]["count"] == 1
    assert told["agents"] == {"ready": 1, "draining": 0, "offline": 0, "unconfirmed": 0}
    assert told["tenants"][0]["tenant_id"] == "default"
    assert world.ask("GET", "/api/monitor/metrics?x=1").status == 400


def test_both_are_in_the_description(world: RestWorld) -> None:
    paths = json.loads(world.ask("GET", "/openapi.json").raw)["paths"]
    assert {"/metrics", "/api/monitor/metrics"} <= paths.keys()


def test_the_documentation_names_every_metric(world: RestWorld) -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    declared = Scrape(world).declared
    assert {name.removeprefix("dgpu_") for name in declared} <= documented | {"build_info"}
    plain = {name for name in declared if not name.startswith(("dgpu_", "process_"))}
    assert {f"dgpu_{name}" for name in plain} | {"dgpu_build_info"} == {
        name for name in declared if name.startswith("dgpu_")
    }


def test_a_metric_has_the_same_samples_under_both_of_its_names(world: RestWorld) -> None:
    world.submit()
    lines = world.ask("GET", "/metrics").body.splitlines()
    plain = [line for line in lines if line.startswith(("task_submitted_total", "gpu_total", "quota_"))]
    assert len(plain) > 3
    assert [line for line in lines if f"dgpu_{plain[0]}" == line]
    assert {f"dgpu_{line}" for line in plain} <= set(lines)
