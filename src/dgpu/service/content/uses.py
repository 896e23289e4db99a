"""What uses stored content: tasks that wait or run. Content without a use is deleted after a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dgpu.core.state import ClusterState
from dgpu.service.content.store import ContentStore, UsedContent
from dgpu.service.loop.runtime import Runtime
from dgpu.wire.uploads import args_ref_of, upload_of

EXPIRE_S = 600.0


def used_content(state: ClusterState) -> UsedContent:
    """Further uses of the store are added here."""
    of_tasks = (
        (state.shapes[task.shape_id].tenant_id, digest)
        for task in state.tasks.values()
        if not task.status.is_final and (digest := upload_of(task.detail) or args_ref_of(task.detail))
    )
    of_apps = (
        (app.spec.shape.tenant_id, digest)
        for app in state.apps.values()
        if (digest := upload_of(app.spec.detail))
    )
    return frozenset((*of_tasks, *of_apps))


@contextlib.asynccontextmanager
async def expiring_content(store: ContentStore | None, runtime: Runtime) -> AsyncIterator[None]:
    """Deletes old content meanwhile."""

    async def expire(store: ContentStore) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            used = await runtime.read(used_content)
            await asyncio.to_thread(store.expire, used)

    expiring = None if store is None else asyncio.create_task(expire(store), name="content")
    try:
        yield
    finally:
        if expiring is not None:
            expiring.cancel()
