"""The terms of a search: read from a query, and matched with tasks in memory."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dgpu.core.model.ids import NO_TASK, TaskId, task_name
from dgpu.core.model.task import Shape, Task, TaskDetail, TaskStatus
from dgpu.service.history.filters import USER_LABEL, Search
from dgpu.service.rest import listing
from dgpu.wire.fields import MAX_LABELS
from dgpu.wire.task_names import Element, parse_named

MAX_WORDS_CHARS = 100
MAX_LABEL_CHARS = 400
_MAX_KNOWN = 2_000
_NEVER_PLAIN = frozenset('"\\')  # JSON escapes these characters

_decode_detail = msgspec.json.Decoder(TaskDetail).decode


class Terms(NamedTuple):
    """As given in the query."""

    q: str | None = None
    node: str | None = None
    gpu: str | None = None
    name: str | None = None
    user: str | None = None
    label: str | None = None
    array: str | None = None


def parse_search(terms: Terms, statuses: tuple[TaskStatus, ...] = ()) -> Search:
    for key, text in terms._asdict().items():
        most = MAX_LABEL_CHARS if key == "label" else MAX_WORDS_CHARS
        if text is not None and not (text.strip() and len(text) <= most and text.isprintable()):
            raise listing.bad_query(key, text, f"1 to {most} printable characters")
    labels = dict(_labels(terms.label)) if terms.label is not None else {}
    if terms.user is not None:
        labels[USER_LABEL] = terms.user
    return Search(
        words=(terms.q or "").strip().lower(),
        node_id=terms.node or "",
        gpu_id=terms.gpu or "",
        name=terms.name or "",
        labels=tuple(sorted(labels.items())),
        array_id=NO_TASK if terms.array is None else _array_id(terms.array),
        statuses=statuses,
    )


def parse_statuses(text: str | None) -> tuple[TaskStatus, ...]:
    """`failed`, or several: `failed,cancelled`. Empty: all."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    found = [TaskStatus(listing.query_value("status", word, listing.status_word)) for word in words]
    return tuple(dict.fromkeys(found))


def parse_sort(text: str | None) -> bool:
    """Whether the oldest come first."""
    if text in {None, "newest", "oldest"}:
        return text == "oldest"
    raise listing.bad_query("sort", text, "newest or oldest")


def _labels(text: str) -> list[tuple[str, str]]:
    entries = [entry.partition("=") for entry in text.split(",")]
    if len(entries) > MAX_LABELS or any(not key.strip() or not equals for key, equals, _ in entries):
        raise listing.bad_query("label", text, "labels like team=nlp, or several: team=nlp,run=7")
    return [(key.strip(), value.strip()) for key, _, value in entries]


def _array_id(text: str) -> TaskId:
    named = parse_named(text)
    if named is None or isinstance(named, Element):
        raise listing.bad_query("array", text, "the id of an array: that of its first task, like task-42")
    return named


def matcher(search: Search) -> Callable[[Task, Shape], bool]:
    """Values of the environment are in the same blob as name and command: a match only in those does not count."""
    says = _of_detail(search)

    def matches(task: Task, shape: Shape) -> bool:
        if search.array_id and task.array_id != search.array_id:
            return False
        if search.statuses and task.status not in search.statuses:
            return False
        if search.gpu_id and search.gpu_id not in task.gpu_ids:
            return False
        if search.node_id and search.node_id != task.node_id and search.node_id not in task.node_ids:
            return False
        words = search.words
        if words and (words in task_name(task.id) or words in shape.tenant_id.lower()):
            words = ""
        return says(task.detail, bool(words))

    return matches


def _of_detail(search: Search) -> Callable[[bytes, bool], bool]:
    """Whether a detail has the name and the labels and, on request, the words."""
    words = search.words
    plain = (
        words.encode()
        if not _NEVER_PLAIN & set(words) and (words.isascii() or words.upper() == words)
        else b""
    )
    needs_more = bool(search.name or search.labels)
    known: dict[tuple[bytes, bool], bool] = {}  # tasks of one batch share their detail

    def says(detail: bytes, with_words: bool) -> bool:
        if not (with_words or needs_more):
            return True
        verdict = known.get((detail, with_words))
        if verdict is None:
            if len(known) > _MAX_KNOWN:
                known.clear()
            verdict = known[detail, with_words] = not (
                with_words and plain and plain not in detail.lower()
            ) and _is_in(search, words if with_words else "", _decode_detail(detail))
        return verdict

    return says


def _is_in(search: Search, words: str, detail: TaskDetail) -> bool:
    if search.name and not fnmatch.fnmatchcase(detail.name, search.name.replace("[", "[[]")):
        return False
    if any(detail.labels.get(key) != value for key, value in search.labels):
        return False
    command = detail.command if isinstance(detail.command, str) else " ".join(detail.command)
    return not words or words in detail.name.lower() or words in command.lower()
