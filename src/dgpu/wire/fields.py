"""The rules of single fields of a submitted task: accepted values, and descriptions of expected ones.

A check takes a decoded JSON value and returns it normalised, or raises `Unacceptable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.core.model.array import MAX_TASKS, ArrayPlan, NoArray, parse_array
from dgpu.core.model.dependencies import ANY_INDEX, Dependency, When, of_entry
from dgpu.core.model.ids import TenantId
from dgpu.core.model.task import PRIORITY_LEVELS, WHOLE_MILLI, Constraint, Pool, Restart, in_steps
from dgpu.wire.task_names import Element, Named, parse_named

MAX_GPUS = 1024
MAX_ARGUMENTS = 4096
MAX_ARGUMENT_BYTES = 131_071  # the kernel's limit of one argument, without the final NUL
MAX_SCRIPT_BYTES = 262_144
MAX_ENV_ENTRIES = 4096
MAX_ENV_BYTES = 262_144
MAX_LABELS = 64
MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096
MAX_RETRIES = 100
MAX_TIMEOUT_SECONDS = 315_360_000  # ten years; the core checks the operator's limit
MAX_MB = 1_000_000_000
MAX_CPUS = 1_000_000
MAX_MODELS = 32
MAX_AFTER = 1_000
_ID_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")

Check = Callable[[Any], Any]


class Unacceptable(Exception):  # noqa: N818 - it says what the value is
    """`at` is the path below the field, `secret` keeps the value out of the response."""

    def __init__(self, expected: str, *, at: str = "", value: object = None, secret: bool = False) -> None:
        super().__init__(expected)
        self.expected = expected
        self.at = at
        self.value = value
        self.secret = secret


def whole(low: int, high: int) -> Check:
    expected = f"a whole number from {low} to {high}"

    def check(value: Any) -> int:
        # bool is an int in Python, but not a number here
        if type(value) is int and low <= value <= high:
            return value
        raise Unacceptable(expected)

    return check


def megabytes(value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_MB:
        return in_steps(value)
    raise Unacceptable(f"a whole number of MB from 0 to {MAX_MB}")


def _line(most: int) -> Check:
    expected = f"text of at most {most} characters, without line breaks or control characters"

    def check(value: Any) -> str:
        if type(value) is str and len(value) <= most and (value.isprintable() or not _has_controls(value)):
            return value
        raise Unacceptable(expected)

    return check


def _has_controls(text: str) -> bool:
    """Control characters, and the two separators that terminals treat as line breaks."""
    return any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029" for c in text)


name = _line(MAX_NAME_CHARS)
short_line = _line(128)


def tenant(value: Any) -> TenantId:
    if type(value) is str and 0 < len(value) <= 64 and _ID_CHARS.issuperset(value) and value[0].isalnum():
        return TenantId(value)
    raise Unacceptable("1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")


def priority(value: Any) -> int:
    if type(value) is int and 0 <= value <= 100:
        return value
    if type(value) is str:
        level = PRIORITY_LEVELS.get(value.lower())
        if level is not None:
            return level
    raise Unacceptable("a whole number from 0 to 100, or one of low, normal, high, critical")


def pool(value: Any) -> Pool:
    if value == "online":
        return Pool.ONLINE
    if value == "batch":
        return Pool.BATCH
    raise Unacceptable("online or batch")


def restart(value: Any) -> Restart:
    try:
        return Restart(value)
    except ValueError:
        raise Unacceptable("never, on-failure or always") from None


def flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise Unacceptable("true or false")


def models(value: Any) -> tuple[str, ...]:
    """One model, alternatives like A100|H100, or a list of them."""
    items = value if type(value) is list else [value]
    if type(value) is str and "|" in value:
        items = [item.strip() for item in value.split("|")]
    if not items or len(items) > MAX_MODELS:
        raise Unacceptable(f"a model's name, or a list of 1 to {MAX_MODELS} names")
    for number, item in enumerate(items):
        if type(item) is not str or not 0 < len(item) <= 128 or _has_controls(item):
            at = f"[{number}]" if type(value) is list else ""
            raise Unacceptable("a model's name of 1 to 128 characters", at=at, value=item)
    return tuple(dict.fromkeys(items))


def share_milli(value: Any) -> int:
    if type(value) in {int, float} and 0.001 <= value <= 1:
        milli: int = round(value * WHOLE_MILLI)
        if abs(milli - value * WHOLE_MILLI) < 1e-6:
            return milli
    raise Unacceptable("a number from 0.001 to 1 with at most 3 decimals")


def constraints(value: Any) -> tuple[Constraint, ...]:
    """`{"zone": "a", "disk": ["ssd", "nvme"]}`, or a list like `["zone=a", "disk=ssd|nvme", "rack!=7"]`."""
    if type(value) is dict:
        entries = [
            (key, True, text if type(text) is list else [text], f".{key[:64]}") for key, text in value.items()
        ]
    elif type(value) is list:
        entries = [_constraint(text, f"[{number}]") for number, text in enumerate(value)]
    else:
        raise Unacceptable('an object like {"zone": "a"}, or a list like ["zone=a", "rack!=7"]')
    if len(entries) > MAX_LABELS:
        raise Unacceptable(f"at most {MAX_LABELS} constraints", value=f"{len(entries)} constraints")
    found = []
    for key, wanted, values, at in entries:
        if not 0 < len(key) <= 128 or _has_controls(key):
            raise Unacceptable("a label's name of 1 to 128 characters", at=at, value=key)
        if not 0 < len(values) <= MAX_LABELS or any(
            type(text) is not str or len(text) > 256 or _has_controls(text) for text in values
        ):
            raise Unacceptable(f"a text, or a list of 1 to {MAX_LABELS} texts", at=at, value=values)
        found.append((key, wanted, tuple(sorted(set(values)))))
    return tuple(sorted(set(found)))


def _constraint(text: Any, at: str) -> tuple[str, bool, list[str], str]:
    if type(text) is not str or "=" not in text:
        raise Unacceptable("a text like zone=a or rack!=7", at=at, value=text)
    key, _, values = text.partition("=")
    wanted = not key.endswith("!")
    return key.removesuffix("!").strip(), wanted, [each.strip() for each in values.split("|")], at


def milli_cpus(value: Any) -> int:
    if type(value) in {int, float} and 0 <= value <= MAX_CPUS:
        milli: int = round(value * 1000)
        # a decimal fraction is not exact in binary: 0.07 * 1000 is 70.00000000000001
        if abs(milli - value * 1000) < 1e-6 * max(1, milli):
            return milli
    raise Unacceptable(f"a number from 0 to {MAX_CPUS} with at most 3 decimals")


def timeout_ms(value: Any) -> int:
    if type(value) in {int, float} and 0 < value <= MAX_TIMEOUT_SECONDS:
        milli: int = round(value * 1000)
        return max(1, milli)
    raise Unacceptable(f"a number of seconds above 0, at most {MAX_TIMEOUT_SECONDS}")


def command(value: Any) -> str | tuple[str, ...]:
    if type(value) is str:
        if not value or value.isspace():
            raise Unacceptable("a command that is not empty")
        _argument(value, "")
        return value
    if type(value) is not list or not value:
        raise Unacceptable("a string for the shell, or a list of 1 to 4096 strings")
    if len(value) > MAX_ARGUMENTS:
        raise Unacceptable(f"at most {MAX_ARGUMENTS} arguments", value=f"{len(value)} items")
    for number, item in enumerate(value):
        if type(item) is not str:
            raise Unacceptable("a string", at=f"[{number}]", value=item)
        _argument(item, f"[{number}]")
    if not value[0]:
        raise Unacceptable("the name of a program", at="[0]", value="")
    return tuple(value)


def script(value: Any) -> str:
    """The first line names the interpreter, as the kernel reads it."""
    if type(value) is not str or not value.startswith("#!") or "\0" in value or "\r\n" in value:
        raise Unacceptable(
            "the text of a script that begins with #!, without NUL and without DOS line breaks"
        )
    if len(value.encode()) > MAX_SCRIPT_BYTES:
        raise Unacceptable(
            f"a script of at most {MAX_SCRIPT_BYTES:,} bytes", value=f"{len(value):,} characters"
        )
    if not value.split("\n", 1)[0][2:].strip().startswith("/"):
        raise Unacceptable("an absolute path after #!, like #!/bin/bash", value=value.split("\n", 1)[0][:64])
    return value


def _argument(text: str, at: str) -> None:
    if "\0" in text:
        raise Unacceptable("text without NUL characters", at=at, value=text)
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise Unacceptable(f"at most {MAX_ARGUMENT_BYTES} bytes", at=at, value=text)


def env(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise Unacceptable("an object of names and texts", secret=True)
    if len(value) > MAX_ENV_ENTRIES:
        raise Unacceptable(f"at most {MAX_ENV_ENTRIES} entries", value=f"{len(value)} entries")
    size = 0
    for key, text in value.items():
        if not key or len(key) > 256 or "=" in key or _has_controls(key):
            expected = "a name of 1 to 256 characters without '=', NUL or control characters"
            raise Unacceptable(expected, at=f".{key[:64]}", value=key)
        if type(text) is not str or "\0" in text:
            raise Unacceptable("text without NUL characters", at=f".{key}", secret=True)
        size += len(key) + (len(text) if text.isascii() else len(text.encode())) + 2
    if size > MAX_ENV_BYTES:
        raise Unacceptable(f"at most {MAX_ENV_BYTES} bytes in all", value=f"{size} bytes")
    return value


def labels(value: Any) -> dict[str, str]:
    if type(value) is not dict or len(value) > MAX_LABELS:
        raise Unacceptable(f"an object of at most {MAX_LABELS} names and texts")
    for key, text in value.items():
        if not 0 < len(key) <= 128 or _has_controls(key):
            raise Unacceptable(
                "a name of 1 to 128 characters without control characters", at=f".{key[:64]}", value=key
            )
        if type(text) is not str or len(text) > 256 or _has_controls(text):
            raise Unacceptable(
                "text of at most 256 characters without control characters", at=f".{key}", value=text
            )
    return value


def workdir(value: Any) -> str:
    if (
        type(value) is str
        and value.startswith("/")
        and len(value) <= MAX_PATH_CHARS
        and not _has_controls(value)
        and ".." not in value.split("/")
    ):
        return value
    raise Unacceptable(f"an absolute path of at most {MAX_PATH_CHARS} characters, without '..' parts")


def array(value: Any) -> ArrayPlan:
    """Empty: no array. `%3` is only a limit, for the tasks of a grid."""
    if value == "":
        return ArrayPlan((), 0)
    if type(value) is str and value.startswith("%"):
        value = f"0-{MAX_TASKS - 1}{value}"
        return array(value)._replace(ranges=())
    if type(value) is not str:
        raise Unacceptable("indexes like 0-9, 0-9%3 or 1,3,7-20:2%5")
    try:
        return parse_array(value)
    except NoArray as bad:
        raise Unacceptable(str(bad)) from None


def after(value: Any) -> tuple[Dependency, ...]:
    """A task's id, or a list of ids and of objects with `task_id` and `when`."""
    items = value if type(value) is list else [value]
    if len(items) > MAX_AFTER:
        raise Unacceptable(f"at most {MAX_AFTER} tasks", value=f"{len(items)} items")
    found: dict[tuple[int, int], Dependency] = {}
    for number, item in enumerate(items):
        at = f"[{number}]" if type(value) is list else ""
        dependency = _dependency(item, at)
        if found.setdefault((dependency.task_id, dependency.index), dependency) != dependency:
            raise Unacceptable("each task with one condition", at=at, value=item)
    return tuple(sorted(found.values()))


def _dependency(item: Any, at: str) -> Dependency:
    raw, when = item, When.OK.value
    if type(item) is dict:
        if item.keys() <= {"entry", "when"} and type(item.get("entry")) is int and item["entry"] >= 0:
            return Dependency(task_id=of_entry(item["entry"]), when=_when(item.get("when", when), at))
        if not item.keys() <= {"task_id", "when"} or "task_id" not in item:
            raise Unacceptable('{"task_id": "task-42", "when": "ok"}', at=at, value=item)
        raw, when = item["task_id"], item.get("when", when)
    named = task(raw)
    if named is None:
        raise Unacceptable("a task's id like task-42 or task-42_3", at=at, value=raw)
    task_id, index = named if isinstance(named, Element) else (named, ANY_INDEX)
    return Dependency(task_id=task_id, when=_when(when, at), index=index)


def _when(value: Any, at: str) -> When:
    if value not in {each.value for each in When}:
        raise Unacceptable("ok, any or failed", at=f"{at}.when", value=value)
    return When(value)


def task(value: object) -> Named | None:
    """An id as a text or a number; None for anything else."""
    return parse_named(str(value)) if type(value) in {str, int} else None


def count(most: int) -> Check:
    return whole(1, most)


def not_yet(accepted: tuple[object, ...], what: str) -> Check:
    """A field of a feature that does not exist yet: only its neutral values are accepted."""

    def check(value: Any) -> None:
        for neutral in accepted:
            if type(value) is type(neutral) and value == neutral:
                return
        raise NotSupportedYet(what)

    return check


class NotSupportedYet(Unacceptable):
    """A known value of a missing feature. Accepting it silently would run something else."""
