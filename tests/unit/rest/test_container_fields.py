"""The fields of a task about its container."""

from __future__ import annotations

import json

import msgspec
import pytest

from dgpu.core.model.task import TaskDetail
from dgpu.wire.container_fields import mount_text
from dgpu.wire.json_body import BadRequest
from dgpu.wire.requests import decode_task


def task(**fields):
    return decode_task(json.dumps({"command": "x", **fields}).encode())


def detail_of(spec) -> TaskDetail:
    return msgspec.json.decode(spec.detail, type=TaskDetail)


def test_an_image_requires_a_node_that_runs_containers() -> None:
    spec = task(image="ubuntu:24.04", constraints={"zone": "a"})
    assert spec.shape.constraints == (("dgpu.containers", True, ("docker",)), ("zone", True, ("a",)))
    assert detail_of(spec).image == "ubuntu:24.04"
    assert task(image="ubuntu", constraints={"dgpu.containers": "docker"}).shape.constraints == (
        ("dgpu.containers", True, ("docker",)),
    )


def test_mounts_are_normal_paths() -> None:
    detail = detail_of(task(image="a", mounts=["/data//x/:/in/", "/b:/c:ro", "/d:/e:rw"], shm_mb=8))
    assert detail.mounts == (("/data/x", "/in", False), ("/b", "/c", True), ("/d", "/e", False))
    assert list(map(mount_text, detail.mounts)) == ["/data/x:/in", "/b:/c:ro", "/d:/e"]
    assert detail.shm_mb == 8


def test_the_secret_of_the_registry_is_one_that_the_task_uses() -> None:
    detail = detail_of(task(image="a", image_secret="REG", secrets=["KEY"]))
    assert {name: use.file or use.env for name, use in detail.secrets.items()} == {
        "KEY": "KEY",
        "REG": ".registry",
    }


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        ({"image": "a b"}, "image", 400),
        ({"image": "-v"}, "image", 400),
        ({"image": "a?tag=b"}, "image", 400),
        ({"image": "a\n"}, "image", 400),
        ({"image": "a" * 513}, "image", 400),
        ({"image": 5}, "image", 400),
        ({"image": "a", "mounts": "/a:/b"}, "mounts", 400),
        ({"image": "a", "mounts": ["/a"]}, "mounts[0]", 400),
        ({"image": "a", "mounts": ["/a:/b", "a:/c"]}, "mounts[1]", 400),
        ({"image": "a", "mounts": ["/a/../b:/c"]}, "mounts[0]", 400),
        ({"image": "a", "mounts": ["/a:/"]}, "mounts[0]", 400),
        ({"image": "a", "mounts": ["/a:/b:shared"]}, "mounts[0]", 400),
        ({"image": "a", "mounts": ["/a:/b", "/c:/b/"]}, "mounts[1]", 400),
        ({"image": "a", "mounts": ["/a:/b"] * 65}, "mounts", 400),
        ({"image": "a", "shm_mb": -1}, "shm_mb", 400),
        ({"image": "a", "read_only_root": "yes"}, "read_only_root", 400),
        ({"mounts": ["/a:/b"]}, "mounts", 400),
        ({"image_secret": "s"}, "image_secret", 400),
        ({"image": "a", "image_secret": "no such name"}, "image_secret", 400),
        ({"image": "a", "image_secret": "REG", "secrets": ["REG"]}, "image_secret", 400),
        ({"image": "a", "secrets": {"REG": {"file": ".registry"}}}, "secrets.REG.file", 400),
        ({"read_only_root": True}, "read_only_root", 400),
        ({"shm_mb": 5}, "shm_mb", 400),
        ({"image": "a", "nodes": 2}, "image", 422),
        ({"image": "a", "allocation": True, "command": None}, "image", 400),
        ({"image": "a", "privileged": True}, "privileged", 400),
    ],
)
def test_a_bad_field_is_named(fields, path, status) -> None:
    with pytest.raises(BadRequest) as refused:
        task(**fields)
    assert (refused.value.errors[0].path, refused.value.status) == (path, status)
