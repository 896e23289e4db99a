"""Scheduler and agent as separate processes: a webhook reports that the agent was killed, and that it came back."""

from __future__ import annotations

import signal

import pytest
import yaml

from alert_receivers import WebhookServer, serving
from dgpu.entry.keepers import end_keepers

from .conftest import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def web():
    server = WebhookServer()
    with serving(server):
        yield server


@pytest.fixture
def cluster(site, web):
    """Starts and kills processes; ends the remaining ones at the end."""
    processes = []

    def start(name, config):
        path = site.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        process = site.start(name, "--config", path)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    end_keepers(site.home / "node")


def test_a_killed_agent_is_told_by_webhook_and_so_is_its_return(site, web, cluster):
    (site.home / "hook").write_text(f"{web.url}/T0ken\n")
    quick = {"interval_seconds": 0.2, "resolve_after_seconds": 0.2, "group_seconds": 0.2}
    scheduler_config = {
        "server": {"http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"},
        "agent": {"heartbeat_timeout": 6},
        "storage": {"snapshot_dir": str(site.data_dir)},
        "alerts": {
            **quick,
            "webhooks": [{"name": "ops", "url_file": str(site.home / "hook")}],
            "sending": {"retry_seconds": 0.2},
        },
        "logging": {"format": "json"},
    }
    scheduler = cluster("scheduler", scheduler_config)
    ready = _line(scheduler, "scheduler_ready")
    site.env["DGPU_SERVER"] = f"http://{ready['http']}"
    agent_config = {
        "agent": {"id": "n1", "heartbeat_interval": 0.3},
        "scheduler": {"master_address": ready["grpc"], "max_retry_interval": 1},
        "gpu": {"detection_method": "simulated", "simulated": "1xV100"},
        "executor": {"work_dir": str(site.home / "node")},
    }
    agent = cluster("agent", agent_config)
    eventually(lambda: site.json("nodes")["total"] == 1, "the node to register")
    assert site.json("alerts")["total"] == 0
    web.answers = [503]  # the first attempt fails
    agent.send_signal(signal.SIGKILL)
    eventually(lambda: len(web.bodies("firing")) >= 2, "the webhook, tried again")
    told = web.bodies("firing")[-1]
    assert (told["rule"], told["alerts"][0]["subject"]) == ("agent_offline", "n1")
    (alert,) = site.json("alerts")["alerts"]
    assert (alert["id"], alert["state"], alert["subject"]) == (told["alerts"][0]["id"], "firing", "n1")
    assert "Node n1 has been offline" in site.good("alerts").out
    assert "mine" in site.good("alerts", "ack", alert["id"], "-m", "mine").out

    # the scheduler restarts: nothing is forgotten, nobody is told again
    scheduler.send_signal(signal.SIGTERM)
    scheduler.wait(30)
    before = len(web.received)
    scheduler = cluster("scheduler", scheduler_config)
    ready = _line(scheduler, "scheduler_ready")
    site.env["DGPU_SERVER"] = f"http://{ready['http']}"
    (kept,) = site.json("alerts")["alerts"]
    assert (kept["id"], kept["comment"], kept["firing_since"]) == (alert["id"], "mine", alert["firing_since"])

    agent_config["scheduler"]["master_address"] = ready["grpc"]
    cluster("agent", agent_config)
    (resolved,) = eventually(lambda: web.bodies("resolved"), "the webhook of its return")
    assert resolved["alerts"][0]["id"] == alert["id"]
    assert [posted.body["state"] for posted in web.received[before:]] == ["resolved"]
    assert site.json("alerts")["firing"] == 0
    tested = site.json("alerts", "test")["targets"]
    assert [(each["name"], each["ok"]) for each in tested] == [("ops", True)]
    scheduler.send_signal(signal.SIGTERM)
    out, err = scheduler.communicate(timeout=30)
    assert "T0ken" not in out + err
    assert "alert_message_sent" in err


def _line(process, event):
    import json

    for line in process.stderr:
        if f'"{event}"' in line:
            return json.loads(line)
    pytest.fail(f"it ended before it said {event}")
    return None
