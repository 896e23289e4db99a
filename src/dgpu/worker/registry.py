"""Models that imported modules have declared with `@dgpu.model`, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DeclaredModel:
    """How to load a model, once per worker. Stays callable: `load()` loads it here and now."""

    def __init__(self, name: str, load: Callable[[], Any], *, memory_mb: int = 0) -> None:
        self.name = name
        self.memory_mb = memory_mb
        self.on_unload: Callable[[Any], object] | None = None
        self._load = load
        self.__doc__ = load.__doc__
        self.__name__ = getattr(load, "__name__", name)
        self.__module__ = load.__module__
        self.__wrapped__ = load

    def __call__(self) -> Any:
        return self._load()

    def unload(self, hook: Callable[[Any], object]) -> Callable[[Any], object]:
        """Decorator: a function that gets the model before its memory is given back."""
        self.on_unload = hook
        return hook

    def __repr__(self) -> str:
        return f"<dgpu.model {self.name!r} of {self.__module__}>"


_models: dict[str, DeclaredModel] = {}


def declare(model: DeclaredModel) -> DeclaredModel:
    """The newest declaration wins: a notebook runs a cell again, a module is loaded again."""
    _models[model.name] = model
    return model


def declared(name: str) -> DeclaredModel | None:
    return _models.get(name)


def names() -> list[str]:
    return sorted(_models)
