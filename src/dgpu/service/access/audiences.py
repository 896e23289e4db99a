"""Audiences: readers of the same tenants. Data for an audience is encoded once for all its readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from dgpu.service.access.principal import Tenants

# Each audience of the board costs one encoding a second: 0.8 ms if all of 1,600 GPUs change.
MAX_AUDIENCES: Final = 64

T = TypeVar("T")


class TooManyAudiences(Exception):  # noqa: N818 - the name states the failure
    """Listeners of this many different sets of tenants are open."""


class Audiences(Generic[T]):
    """What each audience needs, while it has listeners. Readers of all tenants always find a place."""

    def __init__(self, make: Callable[[Tenants], T], is_idle: Callable[[T], bool]) -> None:
        self._make = make
        self._is_idle = is_idle
        self._known: dict[Tenants, T] = {}

    def of(self, tenants: Tenants) -> T:
        """Raises TooManyAudiences."""
        found = self._known.get(tenants)
        if found is None:
            if tenants is not None and len(self._known) >= MAX_AUDIENCES:
                self.drop_idle()
                if len(self._known) >= MAX_AUDIENCES:
                    raise TooManyAudiences
            found = self._known[tenants] = self._make(tenants)
        return found

    def all(self) -> list[T]:
        return list(self._known.values())

    def drop_idle(self) -> None:
        self._known = {name: each for name, each in self._known.items() if not self._is_idle(each)}
