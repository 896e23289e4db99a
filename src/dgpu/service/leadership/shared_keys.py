"""Schedulers of one cluster need the same key files: tokens, secrets and certificates must work after a takeover.

The engine holds a fingerprint of each file, written by the scheduler that leads. A scheduler with another file is
refused at its start, and does not lead. Keys are random and at least 256 bits long, so a fingerprint proves no guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from dgpu.journal.engine import Engine, EngineError, Term
from dgpu.service.machines.member_grants import SHARED_FILES
from dgpu.service.options import OptionsRefused

_LOOK_S = 5.0
_PURPOSE = b"dgpu fingerprint of "

_log = structlog.get_logger("dgpu.leadership")


def refuse_other_keys(directory: Path, engine: Engine) -> None:
    """Raises OptionsRefused, or EngineUnavailable."""
    if why := _difference(directory, engine.key_prints()):
        raise OptionsRefused(why)


class SharedKeys:
    """`term`: while this scheduler leads. `differs` is told once."""

    def __init__(
        self,
        directory: Path,
        engine: Engine,
        *,
        accept_new: bool,
        term: Callable[[], Term | None],
        differs: Callable[[str], None],
        look_s: float = _LOOK_S,
    ) -> None:
        self._directory = directory
        self._engine = engine
        self._accept_new = accept_new  # the files were replaced on purpose
        self._term = term
        self._differs = differs
        self._look_s = look_s

    def lead(self, term: Term) -> None:
        """Before the epoch begins. Raises OptionsRefused if the files are not those of the scheduler that led before.
        An engine that does not answer is asked again by the next look.
        """
        with contextlib.suppress(EngineError):
            if not self._accept_new:
                refuse_other_keys(self._directory, self._engine)
            self._publish(term)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="shared keys")
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if (why := await asyncio.to_thread(self.look)) is not None:
                _log.error("key_file_differs", reason=why)
                self._differs(why)
                return

    def look(self) -> str | None:
        """Why this standby must not lead; None: nothing speaks against it. Blocks."""
        term = self._term()
        try:
            if term is None and self._accept_new:
                return None
            if term is None:
                return _difference(self._directory, self._engine.key_prints()) or None
            self._publish(term)  # `dgpu secret rotate` makes a new key
        except (EngineError, OSError):
            return None  # the next look tries again
        return None

    def _publish(self, term: Term) -> None:
        own = {name: prints[0] for name, prints in _prints(self._directory).items()}
        if own != self._engine.key_prints():
            self._engine.publish_key_prints(term, own)


def _difference(directory: Path, published: dict[str, str]) -> str:
    own = _prints(directory)
    for name, theirs in published.items():
        if theirs in own.get(name, ()):
            continue
        path = directory / name
        state = "is not the file" if name in own else "is missing; it is not the file"
        return (
            f"{path} {state} that the other schedulers of this cluster use. Stop this scheduler, copy {name} from the "
            f"directory of the scheduler that leads (docs/high-availability.md, External mode), and start it again. If "
            f"the file was replaced on purpose: dgpu scheduler --accept-new-keys"
        )
    return ""


def _prints(directory: Path) -> dict[str, list[str]]:
    """By file. The first key of a file is the one in use; the others still open what they sealed."""
    found = {}
    for name in SHARED_FILES:
        with contextlib.suppress(FileNotFoundError):
            content = (directory / name).read_bytes()
            keys = content.split() if name.endswith(".key") else [content]
            found[name] = [hashlib.sha256(_PURPOSE + name.encode() + b"\0" + key).hexdigest() for key in keys]
    return {name: prints for name, prints in found.items() if prints}
