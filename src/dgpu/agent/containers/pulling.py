"""Gets an image onto the node. Standard library only."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dgpu.agent.containers.engine import Engine, EngineDown, EngineError, one_line

_SILENCE_SECONDS = 300.0  # a registry that sends nothing for so long is down
_TELL_SECONDS = 5.0
_MAX_LINE_BYTES = 1 << 20
_DOCKER_HUB = ("docker.io", "index.docker.io", "https://index.docker.io/v1/", "registry-1.docker.io")
# The task's own fault. Every other failure is the node's or the network's, and worth a retry elsewhere.
_TASKS_FAULTS = (
    "not found",
    "manifest unknown",
    "denied",
    "unauthorized",
    "authentication required",
    "invalid",
)


class ImageError(EngineError):
    """The image cannot be had: no such image, or no right to it."""


def ensure_image(engine: Engine, spec: dict[str, Any], say: Callable[[str], None]) -> None:
    """Raises ImageError, EngineError, EngineDown."""
    image, policy = spec["image"], spec["pull"]
    if policy != "always":
        if _is_here(engine, image):
            return
        if policy == "never":
            raise ImageError(0, f"image {image} is not on this node, and executor.docker.pull is never")
    say(f"pulling {image}")
    began = time.monotonic()
    try:
        _pull(engine, image, credentials(spec, registry_of(image)), say)
    except EngineDown:
        raise
    except EngineError as error:
        message = f"image {image}: {error}"
        if error.status in {400, 401, 403, 404} or any(word in str(error).lower() for word in _TASKS_FAULTS):
            raise ImageError(error.status, message) from error
        raise EngineError(error.status, message) from error
    say(f"pulled {image} in {time.monotonic() - began:.0f} s")


def with_tag(image: str) -> tuple[str, str]:
    """Name and tag. Without a tag, the API would pull every tag there is. A digest stays part of the name."""
    name, colon, tag = image.rpartition(":")
    if "@" in image:
        return image, ""
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def registry_of(image: str) -> str:
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def credentials(spec: dict[str, Any], registry: str) -> dict[str, str] | None:
    """Those of the task, else those of the node's file (the format of ~/.docker/config.json)."""
    if spec.get("registry_auth"):
        given: dict[str, str] = {**spec["registry_auth"], "serveraddress": registry}
        return given
    if not spec["auth_file"]:
        return None
    try:
        stored = json.loads(Path(spec["auth_file"]).read_bytes())["auths"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(0, f"executor.docker.auth_file cannot be read: {type(error).__name__}") from error
    names = _DOCKER_HUB if registry == "docker.io" else (registry, f"https://{registry}")
    entry = next((stored[name] for name in names if name in stored), None)
    if entry is None:
        return None
    user, _, password = base64.b64decode(entry.get("auth", "")).decode(errors="replace").partition(":")
    return {"username": user, "password": password, "serveraddress": registry}


def _is_here(engine: Engine, image: str) -> bool:
    try:
        engine.call("GET", f"/images/{quote(image, safe='')}/json")
    except EngineDown:
        raise
    except EngineError as error:
        if error.status == http.client.NOT_FOUND:
            return False
        raise
    return True


def _pull(engine: Engine, image: str, auth: dict[str, str] | None, say: Callable[[str], None]) -> None:
    name, tag = with_tag(image)
    headers = {}
    if auth is not None:
        headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(auth).encode()).decode()
    progress = _Progress(image, say)
    query = {"fromImage": name} | ({"tag": tag} if tag else {})
    response = engine.stream("POST", "/images/create", headers=headers, seconds=_SILENCE_SECONDS, query=query)
    try:
        with response:
            while line := response.readline(_MAX_LINE_BYTES):
                progress.take(line)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(0, f"the pull was cut off: {error or type(error).__name__}") from error


class _Progress:
    """Adds the layers up, and tells at most every few seconds."""

    def __init__(self, image: str, say: Callable[[str], None]) -> None:
        self._image = image
        self._say = say
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = time.monotonic()

    def take(self, line: bytes) -> None:
        try:
            step = json.loads(line)
        except ValueError:
            return
        if step.get("error"):
            raise EngineError(0, one_line(str(step["error"])))
        detail = step.get("progressDetail") or {}
        if detail.get("total") and step.get("status") == "Downloading":
            self._layers[str(step.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
        if self._layers and time.monotonic() - self._told >= _TELL_SECONDS:
            self._told = time.monotonic()
            current, total = map(sum, zip(*self._layers.values(), strict=True))
            self._say(f"pulling {self._image}: {current >> 20} of {total >> 20} MB")
