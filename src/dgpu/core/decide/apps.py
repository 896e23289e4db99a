"""Apps of submitted function calls. An app is journaled with the first call of it, and forgotten with the last."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.core.commands import SubmitTasks
from dgpu.core.model.app import MAX_APPS, App
from dgpu.core.model.task import TaskSpec
from dgpu.core.rejections import TooManyApps
from dgpu.core.rules.estimate import with_estimate
from dgpu.core.state import ClusterState


def new_apps(
    state: ClusterState, command: SubmitTasks, entries: Iterable[tuple[int, TaskSpec]]
) -> tuple[App, ...] | TooManyApps:
    """The apps that the entries use and the state does not know."""
    used = dict.fromkeys(spec.shape.app for _, spec in entries if spec.shape.app)
    if not used:
        return ()
    given = {app.id: app for app in command.apps}
    missing = [app_id for app_id in used if app_id not in state.apps]
    if len(state.apps) + len(missing) > MAX_APPS:
        return TooManyApps(apps=len(state.apps), limit=MAX_APPS)
    return tuple(_accepted(state, given[app_id]) for app_id in missing)


def _accepted(state: ClusterState, app: App) -> App:
    spec = with_estimate(state, app.spec)
    return App(id=app.id, spec=spec, max_workers=app.max_workers)
