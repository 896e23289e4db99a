"""Names of hosts for ports of tasks and for services. Each has its own, so browsers keep their pages apart."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dgpu.core.model.ids import TaskId

LOCAL: Final = "localhost"  # browsers resolve all names below it to their own machine
_TASK: Final = re.compile(r"task-([1-9][0-9]{0,17})-([1-9][0-9]{0,4})(?:-r([0-9]{1,5}))?")
# Names of services have single hyphens, names of tenants may have two: the first two divide.
_SERVICE: Final = re.compile(r"([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?:\.|--)([a-z0-9][a-z0-9_.-]{0,63})")
_MAX_PORT: Final = 65_535
MAX_LABEL_CHARS: Final = 63  # of one part of a host name


class TaskPort(NamedTuple):
    task_id: TaskId
    port: int
    rank: int = 0

    @property
    def label(self) -> str:
        return f"task-{self.task_id}-{self.port}" + (f"-r{self.rank}" if self.rank else "")


class ServiceHost(NamedTuple):
    name: str
    tenant: str  # in lower case, as in a host name


Target = TaskPort | ServiceHost


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the proxy for browsers: all hosts below one domain."""

    scheme: str = "http"
    domain: str = LOCAL
    port: int = 0  # 0: the default of the scheme

    @property
    def is_local(self) -> bool:
        return self.domain == LOCAL

    def host_of(self, target: Target) -> str:
        if isinstance(target, TaskPort):
            return f"{target.label}.{self.domain}"
        # A wildcard certificate covers one label.
        between = "." if self.is_local else "--"
        return f"{target.name}{between}{target.tenant}.{self.domain}"

    def long_label(self, target: Target) -> str:
        """The part of the host that no name service takes; empty: none."""
        return next((each for each in self.host_of(target).split(".") if len(each) > MAX_LABEL_CHARS), "")

    def url_of(self, target: Target, path: str = "/") -> str:
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host_of(target)}{port}{path}"

    def target(self, host: str) -> Target | None:
        """Of a Host header. None: it names no task and no service."""
        name = host.partition(":")[0].lower().rstrip(".")
        label = name.removesuffix(f".{self.domain}")
        if label == name:
            return None
        if (found := _TASK.fullmatch(label)) is not None:
            port, rank = int(found[2]), int(found[3] or 0)
            return TaskPort(TaskId(int(found[1])), port, rank) if port <= _MAX_PORT else None
        found = _SERVICE.fullmatch(label)
        return None if found is None else ServiceHost(found[1], found[2])


def parse_site(url: str, *, port: int, has_tls: bool) -> Site:
    """`url`: like https://*.apps.example.org; empty: names below localhost. ValueError names the expected form."""
    if not url:
        return Site(scheme="https" if has_tls else "http", port=port)
    parts = urlsplit(url)
    domain = (parts.hostname or "").removeprefix("*.")
    is_whole = parts.scheme in {"http", "https"} and (parts.hostname or "").startswith("*.")
    if (
        not is_whole
        or not _DOMAIN.fullmatch(domain)
        or parts.path not in {"", "/"}
        or parts.query
        or parts.username
    ):
        raise ValueError(f"expected a URL like https://*.apps.example.org, got {url!r}")
    return Site(scheme=parts.scheme, domain=domain, port=parts.port or 0)


_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
