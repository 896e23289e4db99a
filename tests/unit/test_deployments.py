"""Files that start dgpu elsewhere: compose files, Kubernetes manifests, systemd units."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

from dgpu.entry.config import load_agent_config, load_scheduler_config
from dgpu.entry.service_unit import ROLES, UnitOptions, unit_name, unit_text

DEPLOYMENTS = pathlib.Path(__file__).parents[2] / "deployments"
COMPOSE = DEPLOYMENTS / "compose"
MANIFESTS = DEPLOYMENTS / "kubernetes" / "dgpu.yaml"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("system", [True, False])
def test_systemd_accepts_the_unit_of_each_role(role, system, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    config = tmp_path / "dgpu.yaml"
    config.write_text("")
    options = UnitOptions(role=role, system=system, config=config if role in {"scheduler", "agent"} else None)
    unit = tmp_path / unit_name(options)
    unit.write_text(unit_text(options))
    done = subprocess.run(
        [analyze, "verify", *([] if system else ["--user"]), "--man=no", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == []
    assert sys.executable in unit_text(options)


def test_a_witness_has_a_directory_and_no_configuration(tmp_path):
    text = unit_text(UnitOptions(role="witness", system=True))
    assert "dgpu witness --dir /var/lib/dgpu-witness" in text
    assert "KillMode=process" not in text  # it ends its member
    with pytest.raises(ValueError, match="no configuration file"):
        unit_text(UnitOptions(role="witness", config=tmp_path / "x.yaml"))


@pytest.mark.parametrize("name", ["scheduler.yaml", "high-availability-scheduler.yaml"])
def test_the_configuration_of_the_compose_files_is_valid(name):
    assert load_scheduler_config(COMPOSE / name).storage.snapshot_dir == "/var/lib/dgpu/state"
    load_agent_config(COMPOSE / "agent.yaml")


@pytest.mark.parametrize("name", ["single.yaml", "high-availability.yaml"])
def test_compose_files_mount_files_that_exist_and_volumes_that_they_name(name):
    written = yaml.safe_load((COMPOSE / name).read_text())
    for service in written["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (COMPOSE / source).is_file() if source.startswith("./") else source in written["volumes"]
    if name.startswith("high"):
        members = [
            service["environment"]["DGPU__HA__MEMBER"]
            for n, service in written["services"].items()
            if n != "c"
        ]
        assert [*members, "c:9379"] == list(
            load_scheduler_config(COMPOSE / f"{name[:-5]}-scheduler.yaml").ha.members
        )


def documents():
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


def test_the_manifests_match_the_published_schemas():
    found = {}
    for document in documents():
        try:
            kubernetes_validate.validate(document, "1.37", strict=True)
        except kubernetes_validate.ValidationError as error:
            found[document["kind"]] = str(error)
    assert found == {}


def test_the_manifests_belong_together(tmp_path):
    """The schemas know nothing of names: of members, volumes, keys of the configuration."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents()}
    files = found["ConfigMap", "dgpu"]["data"]
    for name, load in (("scheduler.yaml", load_scheduler_config), ("agent.yaml", load_agent_config)):
        (tmp_path / name).write_text(files[name])
        load(tmp_path / name)
    members = load_scheduler_config(tmp_path / "scheduler.yaml").ha.members
    names = [
        f"{name}-{number}.dgpu:9379"
        for name in ("dgpu-scheduler", "dgpu-witness")
        for number in range(found["StatefulSet", name]["spec"]["replicas"])
    ]
    assert list(members) == names
    assert all(member in files["prepare.sh"] for member in members)
    for (kind, _), each in found.items():
        if kind not in {"StatefulSet", "DaemonSet"}:
            continue
        pod = each["spec"]["template"]["spec"]
        claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", ())]
        volumes = {volume["name"] for volume in pod["volumes"]} | set(claims)
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert found["PodDisruptionBudget", "dgpu"]["spec"]["maxUnavailable"] == 1


def test_the_image_does_not_run_as_root():
    lines = (DEPLOYMENTS / "Dockerfile").read_text().splitlines()
    assert "USER dgpu" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
