"""A keeper of protocol 1, as released before agents and keepers pinged each other: `python old_keeper.py SETTINGS`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))
    from dgpu.agent import guard, keeper

    class OldKeeper(keeper.Keeper):
        def _obey(self, frame: dict[str, Any]) -> None:
            known = ("spawn", "stop", "thaw", "forget", "word", "shutdown")
            super()._obey({verb: frame[verb] for verb in known if verb in frame})

        def _greet(self) -> None:
            send = self._door.send

            def send_old(frame: dict[str, Any]) -> None:
                frame["hello"].pop("oldest")
                send(frame)

            self._door.send = send_old  # type: ignore[method-assign]
            super()._greet()
            self._door.send = send  # type: ignore[method-assign]

    keeper.PROTOCOL = 1
    guard.Keeper = OldKeeper  # type: ignore[misc]
    sys.exit(guard.main(sys.argv[1]))
