"""Reads GPUs from the tool nvidia-smi, for machines where NVML cannot be loaded.

The tool's output is meant for people and differs between versions: N/A with or without brackets, unwanted units, lines
about lost GPUs among the values. A hung tool is killed; while one cannot be killed (it hangs in the driver), no other
is started.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading

import msgspec

from dgpu.agent.probe.ailments import Ailments, Reading
from dgpu.agent.probe.foreign import foreign_mb, own_mb
from dgpu.agent.probe.probe import (
    ALL_NUMBERS,
    BusyGpus,
    Examination,
    FoundGpu,
    ProbeError,
    ProbeUnavailableError,
    Sample,
)
from dgpu.core.model.health import Cause
from dgpu.core.model.ids import GpuId

# The name comes last: only it may contain a comma.
_GPU_FIELDS = (
    "index,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw,"
    "ecc.errors.uncorrected.volatile.total,name"
)
_APP_FIELDS = "gpu_uuid,pid,used_gpu_memory"
_KILL_GRACE_SECONDS = 2.0
_MAX_TEXT = 300  # of the tool's text in an error

_LOST = re.compile(
    r"device handle for GPU\s*\d*:?\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+):\s*(?P<text>.+)", re.IGNORECASE
)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:MiB|W|%|C)?", re.IGNORECASE)
_NO_DEVICES = re.compile(r"no devices were found", re.IGNORECASE)
_BROKEN_VALUE = re.compile(r"gpu is lost|requires? (?:a )?re(?:set|start)", re.IGNORECASE)
_UNREADABLE_VALUE = re.compile(r"unknown error|err!", re.IGNORECASE)


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    gpu: FoundGpu
    bus_id: str
    used_mb: int = 0
    utilization_percent: int = 0
    temperature_c: int = 0
    power_w: int = 0
    uncorrected: int | None = None
    untold: tuple[str, ...] = ALL_NUMBERS


class NvidiaSmiProbe:
    """Raises ProbeUnavailableError if the tool is missing."""

    def __init__(
        self, *, command: str = "nvidia-smi", timeout_seconds: float = 10.0, max_temperature_c: int = 0
    ) -> None:
        path = shutil.which(command)
        if path is None:
            raise ProbeUnavailableError(f"{command} is not in PATH")
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._known: dict[GpuId, _Card] = {}
        self._stuck: subprocess.Popen[str] | None = None
        self._ailments = Ailments(max_temperature_c=max_temperature_c)

    def list_gpus(self) -> list[FoundGpu]:
        with self._lock:
            cards = self._look()
            self._known = {card.gpu.id: card for card in cards}
            return [self._with_ailment(card).gpu for card in cards]

    def sample(self, busy: BusyGpus) -> list[Sample]:
        with self._lock:
            cards = {card.gpu.id: card for card in self._look()}
            if not self._known:
                self._known = cards
            apps = self._apps(None) if cards else {}
            for card in cards.values():
                self._read(card)
            return [_sample(gpu_id, self._ailing(cards.get(gpu_id)), apps, busy) for gpu_id in self._known]

    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        with self._lock:
            return frozenset(self._apps(gpu_id).get(gpu_id, {}))

    def examine(self, gpu_id: GpuId) -> Examination:
        with self._lock:
            card = next((card for card in self._look() if card.gpu.id == gpu_id), None)
            if card is None:
                return Examination(ok=False, words="nvidia-smi does not list the card")
            self._ailments.absolve(gpu_id)
            self._read(card)
            card = self._with_ailment(card)
        if card.gpu.fault:
            return Examination(ok=False, words=card.gpu.fault)
        return Examination(ok=True, words=f"nvidia-smi answers, {card.temperature_c} °C")

    def program_xid(self, gpu_id: GpuId) -> int:
        del gpu_id
        return 0  # the tool does not report it

    def close(self) -> None:
        with self._lock:
            if self._stuck is not None:
                self._stuck.poll()

    def _look(self) -> list[_Card]:
        code, output = self._run(f"--query-gpu={_GPU_FIELDS}")
        cards, lost, notes = _parse_cards(output)
        lost_cards = self._name_lost(lost)
        if code != 0 and lost_cards:
            # Some versions stop at the first lost GPU. The others are queried by name.
            seen = {card.gpu.id for card in (*cards, *lost_cards)}
            others = [gpu_id for gpu_id in self._known if gpu_id not in seen]
            if others:
                _, output = self._run(f"--id={','.join(others)}", f"--query-gpu={_GPU_FIELDS}")
                cards.extend(_parse_cards(output)[0])
        elif code != 0 and not cards and not _NO_DEVICES.search(output):
            raise ProbeError(
                f"nvidia-smi failed with code {code}: {_shortened(' '.join(notes or lost.values()))}"
            )
        cards = [self._with_what_was_known(card) for card in cards]
        return sorted((*cards, *lost_cards), key=lambda card: (card.gpu.index, card.gpu.id))

    def _read(self, card: _Card) -> None:
        if not card.gpu.fault:
            reading = Reading(temperature_c=card.temperature_c, uncorrected=card.uncorrected)
            self._ailments.look(card.gpu.id, reading)

    def _ailing(self, card: _Card | None) -> _Card | None:
        return None if card is None else self._with_ailment(card)

    def _with_ailment(self, card: _Card) -> _Card:
        if card.gpu.fault:
            return card
        ailment = self._ailments.current(card.gpu.id)
        gpu = msgspec.structs.replace(card.gpu, fault=ailment.fault, fault_cause=ailment.cause)
        return msgspec.structs.replace(card, gpu=gpu)

    def _name_lost(self, lost: dict[str, str]) -> list[_Card]:
        """A lost GPU is printed only by its bus id."""
        by_place = {_bus_place(card.bus_id): card for card in self._known.values()}
        named = []
        for bus_id, fault in lost.items():
            card = by_place.get(_bus_place(bus_id))
            if card is not None:
                gpu = msgspec.structs.replace(card.gpu, fault=fault, fault_cause=Cause.LOST.value)
                named.append(_Card(gpu=gpu, bus_id=card.bus_id))
        return named

    def _with_what_was_known(self, card: _Card) -> _Card:
        before = self._known.get(card.gpu.id)
        if not card.gpu.fault or before is None:
            return card
        gpu = msgspec.structs.replace(
            before.gpu, index=card.gpu.index, fault=card.gpu.fault, fault_cause=card.gpu.fault_cause
        )
        return msgspec.structs.replace(card, gpu=gpu)

    def _apps(self, gpu_id: GpuId | None) -> dict[GpuId, dict[int, int | None]]:
        which = () if gpu_id is None else (f"--id={gpu_id}",)
        code, output = self._run(*which, f"--query-compute-apps={_APP_FIELDS}")
        if code != 0 and not _NO_DEVICES.search(output):
            if gpu_id is None:
                return _parse_apps(output)
            raise ProbeError(f"nvidia-smi failed with code {code}: {_shortened(output)}")
        return _parse_apps(output)

    def _run(self, *arguments: str) -> tuple[int, str]:
        if self._stuck is not None:
            if self._stuck.poll() is None:
                raise ProbeError("an earlier nvidia-smi hangs in the driver and cannot be killed")
            self._stuck = None
        try:
            process = subprocess.Popen(
                (self._path, *arguments, "--format=csv,noheader,nounits"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise ProbeError(f"nvidia-smi does not start: {error.strerror}") from error
        try:
            output, _ = process.communicate(timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise ProbeError(
                f"nvidia-smi gave no answer in {self._timeout_seconds:g} s and was killed"
            ) from None
        return process.returncode, output

    def _kill(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(timeout=_KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = process
        if process.stdout is not None:
            process.stdout.close()


def _sample(
    gpu_id: GpuId, card: _Card | None, apps: dict[GpuId, dict[int, int | None]], busy: BusyGpus
) -> Sample:
    if card is None:
        return Sample(
            gpu_id=gpu_id,
            fault="nvidia-smi no longer lists the card",
            fault_cause=Cause.LOST.value,
            untold=ALL_NUMBERS,
        )
    return Sample(
        gpu_id=gpu_id,
        utilization_percent=card.utilization_percent,
        memory_used_mb=card.used_mb,
        memory_foreign_mb=foreign_mb(
            used_mb=card.used_mb, holders=apps.get(gpu_id, {}), ours=busy.get(gpu_id, frozenset())
        ),
        temperature_c=card.temperature_c,
        power_w=card.power_w,
        fault=card.gpu.fault,
        fault_cause=card.gpu.fault_cause,
        own_mb=own_mb(apps.get(gpu_id, {}), busy.get(gpu_id, frozenset())),
        untold=card.untold,
    )


def _parse_cards(output: str) -> tuple[list[_Card], dict[str, str], list[str]]:
    """Cards, lost cards by bus id, and lines that are neither."""
    cards: list[_Card] = []
    lost: dict[str, str] = {}
    notes: list[str] = []
    for line in filter(None, map(str.strip, output.splitlines())):
        fields = [field.strip() for field in line.split(",", _GPU_FIELDS.count(","))]
        gone = _LOST.search(line)
        if gone is not None:
            lost[gone["bus"]] = f"the card is lost: {_shortened(gone['text'])}"
        elif len(fields) == _GPU_FIELDS.count(",") + 1 and fields[0].isdecimal() and fields[1]:
            cards.append(_parse_card(fields))
        else:
            notes.append(line)
    return cards, lost, notes


def _parse_card(fields: list[str]) -> _Card:
    index, uuid, bus_id, total, used, utilization, temperature, power, uncorrected, name = fields
    fault = _fault(fields, memory=(total, used))
    gpu = FoundGpu(
        id=GpuId(uuid),
        index=int(index),
        model=name.removeprefix("NVIDIA ").strip() or "unknown",
        memory_mb=_number(total),
        fault=fault,
        fault_cause=Cause.FAULT.value if fault else "",
    )
    return _Card(
        gpu=gpu,
        bus_id=bus_id,
        used_mb=_number(used),
        utilization_percent=_number(utilization),
        temperature_c=_number(temperature),
        power_w=_number(power),
        uncorrected=_number(uncorrected) if _NUMBER.fullmatch(uncorrected) else None,
        untold=tuple(
            name
            for name, text in zip(ALL_NUMBERS, (utilization, used, temperature, power), strict=True)
            if not _NUMBER.fullmatch(text)
        ),
    )


def _fault(fields: list[str], *, memory: tuple[str, str]) -> str:
    for field in fields[2:-1]:
        if _BROKEN_VALUE.search(field):
            return f"nvidia-smi says: {field.strip('[]')}"
    # Unreadable power or temperature is common on healthy GPUs; unreadable memory is not.
    if any(_UNREADABLE_VALUE.search(field) for field in memory):
        return "nvidia-smi cannot read the card's memory"
    return ""


def _parse_apps(output: str) -> dict[GpuId, dict[int, int | None]]:
    apps: dict[GpuId, dict[int, int | None]] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[1].isdecimal():
            memory = _number(fields[2]) if _NUMBER.fullmatch(fields[2]) else None
            of_gpu = apps.setdefault(GpuId(fields[0]), {})
            of_gpu[int(fields[1])] = memory
    return apps


def _number(text: str) -> int:
    match = _NUMBER.fullmatch(text)
    return max(round(float(match[1])), 0) if match else 0


def _bus_place(bus_id: str) -> tuple[int, str] | str:
    """Domains are printed with four or with eight digits."""
    domain, _, rest = bus_id.partition(":")
    try:
        return int(domain, 16), rest.lower()
    except ValueError:
        return bus_id.lower()


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else line[:_MAX_TEXT] + "..."
