"""The REST service as one ASGI application."""

from __future__ import annotations

import asyncio
from typing import Any

from dgpu.service.alerts.watch import AlertWatch
from dgpu.service.audit.trail import AuditTrail
from dgpu.service.follower.link import FollowerLink
from dgpu.service.history.reader import History
from dgpu.service.loop.runtime import Runtime
from dgpu.service.notices.reach import NoticeTargets
from dgpu.service.rest.access import Access
from dgpu.service.rest.audit_hook import AuditHook
from dgpu.service.rest.backend import Backend, RestOptions
from dgpu.service.rest.doors import Doors
from dgpu.service.rest.front import App, Front
from dgpu.service.rest.pages import BUNDLE, Pages
from dgpu.service.rest.request_log import RequestLog
from dgpu.service.rest.turns import Turns
from dgpu.service.secrets.vault import Vault
from dgpu.service.task_channels import ChannelStreams
from dgpu.service.task_files import FileStreams
from dgpu.service.task_output.streams import OutputStreams
from dgpu.service.views.views import Views

_FIRST_ANSWERS_S = 0.1


def create_app(
    runtime: Runtime,
    views: Views,
    history: History,
    output: OutputStreams,
    access: Access,
    options: RestOptions,
    follower: FollowerLink | None = None,
    alerts: AlertWatch | None = None,
    files: FileStreams | None = None,
    doors: Doors | None = None,
    turns: Turns | None = None,
    vault: Vault | None = None,
    trail: AuditTrail | None = None,
    notice_targets: NoticeTargets | None = None,
    channels: ChannelStreams | None = None,
) -> App:
    """Call it in the serving loop. `views` must get every group that `runtime` commits.

    Submits, probes and the list of tasks are answered from the start; other calls wait until the frame is loaded.
    """
    tokens = access.tokens
    backend = Backend(
        runtime,
        views,
        history,
        output,
        options,
        follower,
        files,
        doors,
        turns,
        tokens,
        vault,
        trail,
        channels,
    )
    backend.notice_targets = notice_targets
    if alerts is not None:
        backend.watch_alerts(alerts)
    return app_of(backend, access)


def app_of(backend: Backend, access: Access) -> App:
    backend.streams.still_admits = access.still_admits
    options = backend.options
    front = Front(backend, access, _LaterFrame(backend), Pages(options.pages_dir or BUNDLE))
    return RequestLog(AuditHook(front, backend.trail))


class _LaterFrame:
    """Loaded in a thread: at once if a request waits for it, otherwise after the first answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._frame: App | None = None
        self._making: asyncio.Future[App] | None = None
        asyncio.get_running_loop().call_later(_FIRST_ANSWERS_S, self._begin)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._frame is None:
            self._frame = await asyncio.shield(self._begin())
        await self._frame(scope, receive, send)

    def _begin(self) -> asyncio.Future[App]:
        if self._making is None:
            self._making = asyncio.get_running_loop().run_in_executor(None, self._make)
        return self._making

    def _make(self) -> App:
        from dgpu.service.rest.frame import make_frame

        return make_frame(self._backend)
