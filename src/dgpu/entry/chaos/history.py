"""What clients, nodes and schedulers showed during a run, and the promises that it must keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

HELD = "chaos-held"  # names of tasks and of their tenants: held ones never run
RUN = "chaos-run"
LONG = "chaos-long"
READ_STALE_MAX_S = 30.0  # ha.read_stale_max
STALL_MARGIN_S = 8.0  # the fault takes time to strike, and the last answer of the engine may be younger
_MAX_NAMED = 5  # tasks that a finding names


class Submit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An acknowledged submit."""

    key: str
    sent_s: float  # of its first try
    acknowledged_s: float
    by: str  # scheduler
    number: int  # of the task
    runs: bool = False


class FailedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of the SDK that gave up. The load repeats it with the same key."""

    sent_s: float
    failed_s: float
    error: str


class Read(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A read at one scheduler."""

    sent_s: float
    answered_s: float
    by: str
    status: int  # 0: no answer
    role: str = ""
    lag_ms: int | None = None


class Leading(msgspec.Struct, frozen=True, kw_only=True):
    """The first time that a scheduler said that it is the master of this epoch."""

    at_s: float
    scheduler: str
    epoch: int


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The begin or the end of a run, in the order in which the processes wrote them."""

    at_s: float
    begins: bool
    number: int
    attempt: int
    node: str


class Found(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task as a scheduler lists it."""

    name: str
    status: str
    attempt: int
    reason: str = ""


def lost(submits: Iterable[Submit], found: Mapping[int, Found], by: str) -> Iterator[str]:
    missing = sorted(each.number for each in submits if each.number not in found)
    if missing:
        yield f"lost: {len(missing)} acknowledged tasks are unknown to {by}: {_named(missing)}"


def given_twice(submits: Iterable[Submit]) -> Iterator[str]:
    keys: dict[int, str] = {}
    twice = sorted({each.number for each in submits if keys.setdefault(each.number, each.key) != each.key})
    if twice:
        yield f"lost: {len(twice)} task ids were given to two submits: {_named(twice)}"


def out_of_order(submits: Iterable[Submit]) -> Iterator[str]:
    """A submit that was sent after another one was acknowledged has the higher number. Else the journal forked."""
    submits = list(submits)
    acknowledged = sorted((each.acknowledged_s, each.number) for each in submits)
    highest, place = 0, 0
    for each in sorted(submits, key=lambda submit: submit.sent_s):
        while place < len(acknowledged) and acknowledged[place][0] < each.sent_s:
            highest = max(highest, acknowledged[place][1])
            place += 1
        if each.number <= highest:
            yield f"forked: task {each.number} was submitted after task {highest} was acknowledged"
            return


def ran_twice(steps: Iterable[Step]) -> Iterator[str]:
    """Any second run is wrong: no fault of the list ends a task."""
    running: dict[int, Step] = {}
    ended: dict[int, Step] = {}
    for step in steps:
        if not step.begins:
            running.pop(step.number, None)
            ended[step.number] = step
            continue
        if (other := running.get(step.number)) is not None:
            yield (
                f"doubled: task {step.number} began as attempt {step.attempt} on {step.node} while attempt "
                f"{other.attempt} ran on {other.node}"
            )
        elif (other := ended.get(step.number)) is not None:
            yield (
                f"requeued: task {step.number} had ended as attempt {other.attempt} and began again as attempt "
                f"{step.attempt} on {step.node}"
            )
        running[step.number] = step


def without_cause(found: Mapping[int, Found]) -> Iterator[str]:
    """No fault of the list fails a task, cancels one that runs, or needs a second attempt."""
    for number, task in sorted(found.items()):
        good = {"pending", "cancelled"} if task.name == HELD else {"pending", "running", "success"}
        if task.status not in good:
            yield f"failed: task {number} ({task.name}) is {task.status}: {task.reason or 'no reason'}"
        elif task.attempt > 1:
            yield f"requeued: task {number} ({task.name}) is {task.status} in attempt {task.attempt}"


def unfinished(found: Mapping[int, Found]) -> Iterator[str]:
    """At the end every task that may run has run."""
    left = sorted(number for number, task in found.items() if task.name != HELD and task.status != "success")
    if left:
        yield f"stuck: {len(left)} tasks did not end: {_named(left)}"


def succeeded_without_a_run(found: Mapping[int, Found], steps: Iterable[Step]) -> Iterator[str]:
    """The record of the processes and that of the scheduler agree."""
    ended = {step.number for step in steps if not step.begins}
    unseen = sorted(
        number
        for number, task in found.items()
        if task.name in {RUN, LONG} and task.status == "success" and number not in ended
    )
    if unseen:
        yield f"invented: {len(unseen)} tasks count as succeeded, but no process ended: {_named(unseen)}"


def epochs_go_back(leading: Sequence[Leading]) -> Iterator[str]:
    """Each epoch has one master, and a later master has a higher epoch."""
    owners: dict[int, str] = {}
    highest = 0
    for each in sorted(leading, key=lambda seen: seen.at_s):
        owner = owners.setdefault(each.epoch, each.scheduler)
        if owner != each.scheduler:
            yield f"epoch: {owner} and {each.scheduler} both led epoch {each.epoch}"
        elif each.epoch < highest:
            yield f"epoch: {each.scheduler} began to lead epoch {each.epoch} after epoch {highest}"
        highest = max(highest, each.epoch)


def differ(first: Mapping[int, Found], second: Mapping[int, Found]) -> Iterator[str]:
    """Two schedulers that have everything show the same tasks."""
    apart = sorted(
        number for number in first.keys() | second.keys() if first.get(number) != second.get(number)
    )
    if apart:
        yield f"diverged: the schedulers differ in {len(apart)} tasks: {_named(apart)}"


def noticed(failed: Iterable[FailedCall], from_s: float, to_s: float) -> Iterator[str]:
    """Some faults are none of the clients' business."""
    inside = [each for each in failed if from_s <= each.failed_s <= to_s]
    if inside:
        yield f"noticed: {len(inside)} calls of the SDK failed, the first one with: {inside[0].error}"


def stored_without_majority(submits: Iterable[Submit], from_s: float, to_s: float) -> Iterator[str]:
    inside = [each for each in submits if from_s < each.sent_s and each.acknowledged_s < to_s]
    if inside:
        yield f"stored: {len(inside)} submits were acknowledged while two of three machines were gone"


def reads_of_stall(reads: Iterable[Read], by: str, from_s: float, to_s: float) -> Iterator[str]:
    """A master without a majority answers with older data and says how old they are, then it refuses."""
    for read in reads:
        if read.by != by or not from_s < read.sent_s < to_s or read.answered_s > to_s:
            continue
        age_s = read.sent_s - from_s
        if read.status == 200 and read.lag_ms is not None and age_s < READ_STALE_MAX_S + STALL_MARGIN_S:
            continue
        if read.status == 503 and age_s > READ_STALE_MAX_S - STALL_MARGIN_S:
            continue
        what = "no answer" if read.status == 0 else f"{read.status} with the age {read.lag_ms} ms"
        yield f"silent: a read at {by}, {age_s:.1f} s after the majority was lost, got {what}"
        return


def _named(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"task-{number}" for number in numbers[:_MAX_NAMED])
    return shown + (", …" if len(numbers) > _MAX_NAMED else "")
