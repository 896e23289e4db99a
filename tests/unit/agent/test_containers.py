"""Containers without an engine: what is asked of one, which mounts are allowed, how images are named."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading

import pytest

from dgpu.agent.accounts import Person
from dgpu.agent.containers.body import create_body
from dgpu.agent.containers.engine import Engine, EngineError
from dgpu.agent.containers.mounts import MountRefused, pin
from dgpu.agent.containers.pulling import ImageError, credentials, ensure_image, registry_of, with_tag
from dgpu.agent.frames import CONTAINERS_PROTOCOL
from dgpu.agent.launch_as import Account
from dgpu.agent.options import ContainerOptions
from dgpu.agent.run.containers import NotHereError, container_account, container_order
from dgpu.agent.run.orders import spawn_order
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.task import TaskDetail

OPTIONS = ContainerOptions(socket="/run/engine.sock")


def order_of(detail=None, options=OPTIONS, person=None, *, protocol=CONTAINERS_PROTOCOL, **facts):
    order = RunOrder(lease_id=LeaseId(1), task_id=TaskId(1), attempt=1, gpu_ids=(GpuId("GPU-a"),), **facts)
    return container_order(
        order, detail or TaskDetail(image="a:1"), options, person, keeper_protocol=protocol
    )


def body_of(spec=None, mounts=(), **facts):
    spec = (spec or order_of()) | {
        "argv": ["a"],
        "env": {},
        "dir": "/d",
        "labels": {},
        "secrets_dir": "",
        "terminal": False,
        **facts,
    }
    return create_body(spec, list(mounts))


def test_a_task_without_an_image_is_a_process_unless_the_node_has_a_default_image() -> None:
    assert order_of(TaskDetail()) is None
    options = ContainerOptions(socket="/s", default_image="d:1")
    assert order_of(TaskDetail(), options)["image"] == "d:1"


def test_an_image_never_runs_outside_of_a_container() -> None:
    """An agent without an engine, or with a keeper of an earlier version, must not run the bare command."""
    with pytest.raises(NotHereError, match="runs no containers"):
        order_of(options=None)
    with pytest.raises(NotHereError, match="earlier version"):
        order_of(protocol=CONTAINERS_PROTOCOL - 1)


def test_nobody_is_root_in_a_container(monkeypatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert order_of()["user"] == "65534:65534"
    assert container_account(order_of()) == [65534, 65534, [], 0]
    tenant = Person(Account(70001, 70001, (44,)), "dgpu-70001", "")
    isolated = order_of(options=ContainerOptions(socket="/s", user="5:5"), person=tenant)
    assert (isolated["user"], isolated["groups"]) == ("70001:70001", (44,))
    assert body_of(isolated)["HostConfig"]["GroupAdd"] == ["44"]


def test_a_container_gets_no_more_than_a_process() -> None:
    host = body_of()["HostConfig"]
    assert (host["CapDrop"], host["Privileged"]) == (["ALL"], False)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["IpcMode"] == "private"
    assert not {"PidMode", "UTSMode", "UsernsMode", "NetworkMode", "CapAdd", "Devices", "Binds"} & host.keys()


def test_limits_and_gpus_are_those_of_the_order() -> None:
    detail = TaskDetail(image="a:1", shm_mb=64, read_only_root=True)
    host = body_of(order_of(detail, ram_mb=512, cpus_milli=1_500))["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 512 << 20
    assert (host["NanoCpus"], host["ShmSize"], host["PidsLimit"]) == (1_500_000_000, 64 << 20, 4_096)
    assert host["ReadonlyRootfs"] is True
    assert "/tmp" in host["Tmpfs"]
    assert host["DeviceRequests"] == [{"Driver": "", "DeviceIDs": ("GPU-a",), "Capabilities": [["gpu"]]}]
    cdi = body_of(order_of(options=ContainerOptions(socket="/s", gpu_method="cdi")))["HostConfig"]
    assert cdi["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a"]}]


@pytest.mark.parametrize(("gpus", "seen"), [(["GPU-a"], "GPU-a"), ([], "void")])
def test_an_image_or_a_task_cannot_ask_the_runtime_for_other_gpus(gpus, seen) -> None:
    """The NVIDIA runtime hands out what this variable names."""
    env = body_of(gpus=gpus, env={"NVIDIA_VISIBLE_DEVICES": "all"})["Env"]
    assert f"NVIDIA_VISIBLE_DEVICES={seen}" in env
    assert not any("all" in each for each in env)


def test_a_simulated_gpu_has_no_device() -> None:
    options = ContainerOptions(socket="/s", simulated_gpus=True)
    assert "DeviceRequests" not in body_of(order_of(options=options))["HostConfig"]


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/x", "/sys/fs", "/dev/shm"])
def test_a_mount_cannot_hide_what_the_engine_mounts(tmp_path, target) -> None:
    with pytest.raises(MountRefused, match="mount target"):
        pin(str(tmp_path), target, read_only=False, allowed=[str(tmp_path)], hidden=[])


def test_a_name_that_only_begins_like_an_allowed_one_is_refused(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data-of-others").mkdir()
    with pytest.raises(MountRefused, match="outside"):
        pin(f"{tmp_path}/data-of-others", "/d", read_only=False, allowed=[f"{tmp_path}/data"], hidden=[])


@pytest.mark.parametrize(
    ("image", "name", "tag", "registry"),
    [
        ("ubuntu", "ubuntu", "latest", "docker.io"),
        ("ubuntu:24.04", "ubuntu", "24.04", "docker.io"),
        ("team/app", "team/app", "latest", "docker.io"),
        ("localhost:5000/app", "localhost:5000/app", "latest", "localhost:5000"),
        ("r.example.org/team/app:1", "r.example.org/team/app", "1", "r.example.org"),
        ("r.example.org/app@sha256:aa", "r.example.org/app@sha256:aa", "", "r.example.org"),
    ],
)
def test_names_of_images(image, name, tag, registry) -> None:
    assert (with_tag(image), registry_of(image)) == ((name, tag), registry)


def test_credentials_are_those_of_the_registry_only(tmp_path) -> None:
    file = tmp_path / "auth.json"
    stored = base64.b64encode(b"ann:s3cret:x").decode()
    file.write_text(json.dumps({"auths": {"r.example.org": {"auth": stored}}}))
    spec = {"auth_file": str(file)}
    assert credentials(spec, "r.example.org") == {
        "username": "ann",
        "password": "s3cret:x",
        "serveraddress": "r.example.org",
    }
    assert credentials(spec, "docker.io") is None
    file.write_text('{"auths": s3cret')
    with pytest.raises(EngineError) as refused:
        credentials(spec, "r.example.org")
    assert "s3cret" not in str(refused.value)


def test_only_the_pull_gets_the_secret_of_the_registry() -> None:
    order = RunOrder(
        lease_id=LeaseId(1),
        task_id=TaskId(1),
        attempt=1,
        detail=b'{"command": "x", "image": "a:1"}',
        secret_files={".registry": b"ann:s3cret\n", "key": b"k"},
    )
    asked = spawn_order(
        order,
        node_id=NodeId("n"),
        keeper_id="k",
        surroundings={},
        grace_ms=1,
        start_ms=1,
        containers=OPTIONS,
    )
    assert asked["container"]["registry_auth"] == {"username": "ann", "password": "s3cret"}
    assert list(asked["secrets"]) == ["key"]
    own = credentials(asked["container"] | {"auth_file": "/nope"}, "r.example.org")
    assert own == {"username": "ann", "password": "s3cret", "serveraddress": "r.example.org"}


def test_a_container_finds_the_list_of_nodes_beside_its_secrets() -> None:
    env = {"DGPU_HOSTFILE": "/dev/shm/dgpu-0-1/7/.hostfile"}
    body = body_of(env=env, secrets_dir="/dev/shm/dgpu-0-1/7")
    assert "DGPU_HOSTFILE=/run/secrets/.hostfile" in body["Env"]


def test_a_task_may_choose_options_of_torchrun_but_not_its_rank() -> None:
    order = RunOrder(
        lease_id=LeaseId(1),
        task_id=TaskId(1),
        attempt=1,
        detail=b'{"command": "x", "env": {"PET_NPROC_PER_NODE": "4", "RANK": "7"}}',
        env={"PET_NPROC_PER_NODE": "1", "PET_NNODES": "2", "RANK": "0"},
    )
    asked = spawn_order(order, node_id=NodeId("n"), keeper_id="k", surroundings={}, grace_ms=1, start_ms=1)
    chosen = {name: asked["env"][name] for name in ("PET_NPROC_PER_NODE", "PET_NNODES", "RANK")}
    assert chosen == {"PET_NPROC_PER_NODE": "4", "PET_NNODES": "2", "RANK": "0"}


def test_a_secret_without_a_colon_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="USER:PASSWORD") as refused:
        order_of(secret_files={".registry": b"s3cret"})
    assert "s3cret" not in str(refused.value)


def test_the_engine_gets_the_credentials_and_the_progress_is_told(tmp_path) -> None:
    lines = [
        {"status": "Downloading", "id": "l1", "progressDetail": {"current": 1 << 20, "total": 4 << 20}},
        {"error": "manifest unknown"},
    ]
    answers = [b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]
    answers.append(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    spec = {"image": "r.example.org/a", "pull": "missing", "auth_file": ""}
    spec["registry_auth"] = {"username": "ann", "password": "s3cret"}
    said: list[str] = []
    with (
        fake_engine(tmp_path / "sock", answers) as asked,
        pytest.raises(ImageError, match="manifest unknown"),
    ):
        ensure_image(Engine(str(tmp_path / "sock")), spec, said.append)
    assert asked[1].startswith("POST /v1.41/images/create?fromImage=r.example.org%2Fa&tag=latest ")
    (sent,) = [line.split(": ")[1] for line in asked[1].split("\r\n") if line.startswith("X-Registry-Auth")]
    assert json.loads(base64.urlsafe_b64decode(sent))["password"] == "s3cret"
    assert said == ["pulling r.example.org/a"]


@contextlib.contextmanager
def fake_engine(path, answers):
    """Answers in order, one per connection: the requests, as they arrived."""
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            for answer in answers:
                link, _ = listening.accept()
                asked.append(link.recv(65_536).decode())
                link.sendall(answer)
                link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join()
