"""`why` of a task with an image: nodes with room that run no containers are named."""

from __future__ import annotations

IMAGE = {"command": "true", "gpu_count": 1, "image": "busybox"}


def waiting(world, **fields) -> dict:
    task_id = world.ask("POST", "/api/v1/tasks", {**IMAGE, **fields}).body["task_id"]
    return dict(world.ask("GET", f"/api/v1/tasks/{task_id}/why").body)


def test_a_node_without_a_container_engine_is_named(world) -> None:
    world.add_node("boxes", gpus=1, labels={"dgpu.containers": "docker"})
    for name in ("plain", "bare"):
        world.add_node(name, gpus=4)
    world.ask("POST", "/api/v1/tasks", IMAGE)
    told = waiting(world)
    (found,) = [each for each in told["blockers"] if each["code"] == "containers"]
    assert found["nodes"] == 2
    assert found["detail"] == "2 nodes with room for it have no container engine that answers: bare, plain"
    assert "constraints" not in {each["code"] for each in told["blockers"]}
    assert "constraints" not in {each["change"] for each in told["sooner"]}


def test_own_constraints_are_told_apart_from_the_image(world) -> None:
    world.add_node("boxes", gpus=1, labels={"dgpu.containers": "docker", "zone": "a"})
    world.add_node("other", gpus=1, labels={"dgpu.containers": "docker"})
    world.add_node("plain", gpus=1, labels={"zone": "a"})
    world.ask("POST", "/api/v1/tasks", {**IMAGE, "constraints": ["zone=a"]})
    told = waiting(world, constraints=["zone=a"])
    details = {each["code"]: each["detail"] for each in told["blockers"]}
    assert details["containers"].endswith("engine that answers: plain")
    assert details["constraints"] == "its constraints rule out 1 node with room for it"
    assert "constraints" in {each["change"] for each in told["sooner"]}
