"""The section notify of scheduler.yaml: targets that tasks may name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dgpu.entry.alert_targets import MAX_TARGETS, sending_rules, written_value
from dgpu.entry.alert_types import AlertSending, Notify
from dgpu.entry.config_problem import Problem

if TYPE_CHECKING:
    from dgpu.service.notices.reach import NoticeOptions, TaskTarget


def check_notify(notify: Notify) -> Iterator[Problem]:
    problems: list[Problem] = []
    _targets(notify, problems.append)
    yield from problems


def notice_options(notify: Notify, sending: AlertSending) -> NoticeOptions:
    """For a configuration that was checked."""
    from dgpu.service.notices.reach import NoticeOptions

    targets = _targets(notify, lambda _: None)
    return NoticeOptions(targets=targets, secrets=notify.secrets, sending=sending_rules(sending))


def _targets(notify: Notify, refuse: Callable[[Problem], None]) -> tuple[TaskTarget, ...]:
    if not notify.targets:
        return ()  # without targets, nothing is imported
    from dgpu.service.alerts.senders import apprise_refusal
    from dgpu.service.alerts.targets import Target, webhook_refusal
    from dgpu.service.notices.reach import TaskTarget

    if len(notify.targets) > MAX_TARGETS:
        refuse(Problem("notify.targets", f"at most {MAX_TARGETS} can be listed"))
        return ()
    found: dict[str, TaskTarget] = {}
    for number, written in enumerate(notify.targets):
        path = f"notify.targets[{number}]"
        if not written.name or written.name in found:
            why = (
                f"{written.name!r} is listed twice"
                if written.name
                else "is missing; tasks name the target by it"
            )
            refuse(Problem(f"{path}.name", why))
            continue
        url = written_value(path, "url", written, refuse, needed=True)
        if url is None:
            continue
        is_webhook = url.partition("://")[0].lower() in {"http", "https"}
        why_not = webhook_refusal(url) if is_webhook else apprise_refusal(url)
        if why_not is not None:
            refuse(Problem(f"{path}.url", why_not))
            continue
        target = Target(name=written.name, kind="webhook" if is_webhook else "apprise", url=url)
        found[written.name] = TaskTarget(target=target, tenants=written.tenants)
    return tuple(found.values())
