"""Two models that fill a GPU each, and functions that use them. Loads and calls sleep: the GPUs are simulated."""

from __future__ import annotations

import time

import dgpu

LOAD_SECONDS = 0.5
CALL_SECONDS = 0.02


class Model:
    def __init__(self) -> None:
        time.sleep(LOAD_SECONDS)
        self.uses = 0

    def use(self) -> bool:
        """Whether it was loaded for an earlier call."""
        self.uses += 1
        time.sleep(CALL_SECONDS)
        return self.uses > 1


@dgpu.model("red")
def load_red() -> Model:
    return Model()


@dgpu.model("blue")
def load_blue() -> Model:
    return Model()


@dgpu.task(model="red", timeout=60)
def red(model: Model) -> bool:
    return model.use()


@dgpu.task(model="blue", timeout=60)
def blue(model: Model) -> bool:
    return model.use()
