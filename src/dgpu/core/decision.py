"""The result of a decision: events or a refusal. Neither changes the state."""

from __future__ import annotations

from typing import TypeAlias

from dgpu.core.events import Event
from dgpu.core.rejections import Rejection

Decision: TypeAlias = tuple[Event, ...] | Rejection
