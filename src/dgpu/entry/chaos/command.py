"""The command: chooses what may happen, runs it, prints it."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Sequence

from dgpu.entry.chaos.cluster import ChaosFailed
from dgpu.entry.chaos.faults import FAULTS
from dgpu.entry.chaos.network import NetworkFailed, why_no_network
from dgpu.entry.chaos.report import verdict_lines
from dgpu.entry.chaos.run import Run, Settings
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.etcd_program import find_etcd

_MINUTES = 5.0


class ChaosRefused(Exception):  # noqa: N818 - it says what happened
    """The run cannot begin as it was asked for."""


def chaos(
    *,
    minutes: float | None,
    rounds: int | None,
    seed: int | None,
    faults: Sequence[str] | None,
    rate: float,
    network: bool | None,
    keep: bool,
) -> bool:
    """True: all promises were kept. Raises ChaosRefused."""
    why_not = why_no_network()
    if network and why_not:
        raise ChaosRefused(f"--network: {why_not}.")
    has_network = not why_not if network is None else network
    settings = Settings(
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        faults=_chosen(faults, has_network=has_network, why_not=why_not or "not with --no-network"),
        minutes=_MINUTES if minutes is None and rounds is None else minutes,
        rounds=rounds,
        rate=rate,
        network=has_network,
        keep=keep,
    )
    try:
        find_etcd()
    except HaFailure as error:
        raise ChaosRefused(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
    _say(f"Seed {settings.seed}, {rate:g} submits per second. Faults: {', '.join(settings.faults)}.")
    if why_not and network is None:
        _say(f"Without faults of the network: {why_not}.")
    return _played(settings)


def _played(settings: Settings) -> bool:
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores SIGINT for commands in the background
        signal.signal(number, signal.default_int_handler)
    run = Run(settings, _say)
    try:
        with run.cluster():
            verdict = run.play()
            for line in verdict_lines(verdict):
                _say(line)
    except (ChaosFailed, NetworkFailed) as error:
        sys.stderr.write(f"dgpu chaos: {error}\n")
        return False
    except KeyboardInterrupt:
        _say("Interrupted: there is no verdict.")
        return False
    if not verdict.is_good and not settings.keep:
        _say(f"For the logs: dgpu chaos --keep --seed {settings.seed}, with the same faults.")
    return verdict.is_good


def _chosen(names: Sequence[str] | None, *, has_network: bool, why_not: str) -> tuple[str, ...]:
    if not names:
        return tuple(
            name
            for name, fault in FAULTS.items()
            if not fault.is_rare and (has_network or not fault.needs_network)
        )
    for name in names:
        if name not in FAULTS:
            raise ChaosRefused(f"--fault: expected one of {', '.join(FAULTS)}; got {name!r}.")
        if FAULTS[name].needs_network and not has_network:
            raise ChaosRefused(f"--fault {name}: {why_not}.")
    return tuple(dict.fromkeys(names))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
