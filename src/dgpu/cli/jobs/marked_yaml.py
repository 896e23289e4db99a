"""YAML with the line and column of each value. No I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from dgpu.cli.jobs.directives import Fault, JobFileError

# Their values are texts, whatever they look like: `LR: 0.1` is the variable LR with the text 0.1.
_TEXTS = frozenset({"env", "labels"})


class Marked(NamedTuple):
    value: Any
    places: dict[str, tuple[int, int]]  # by path, like tasks[0].env.A

    def fault(self, path: str, message: str) -> Fault:
        """A fault of the value at this path, or at the nearest known one around it."""
        while path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return Fault(*self.places[path], message)


def read_marked(text: str) -> Marked:
    """Raises JobFileError."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise JobFileError([Fault(line, column, f"not YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise JobFileError([Fault(1, 1, f"not YAML: {error}")]) from None
    except RecursionError:
        raise JobFileError([Fault(1, 1, "the values are nested too deeply")]) from None
    if root is None:
        raise JobFileError([Fault(1, 1, "the file is empty")])
    reading = _Reading(loader)
    value = reading.value(root, "")
    if reading.faults:
        raise JobFileError(reading.faults)
    return Marked(value, reading.places)


class _Reading:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self.places: dict[str, tuple[int, int]] = {}
        self.faults: list[Fault] = []
        self._open: set[int] = set()  # nodes around the current one

    def value(self, node: Node, path: str, *, as_text: bool = False) -> Any:
        place = self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node, place, as_text=as_text)
        if id(node) in self._open:
            self.faults.append(Fault(*place, "a value contains itself"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, f"{path}[{number}]") for number, item in enumerate(node.value)]
            return self._mapping(node, path) if isinstance(node, MappingNode) else None
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: ScalarNode, place: tuple[int, int], *, as_text: bool) -> Any:
        if as_text:
            return node.value
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            problem = getattr(error, "problem", None) or error
            self.faults.append(Fault(*place, f"not a plain value: {problem}"))
            return None

    def _mapping(self, node: MappingNode, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        as_text = path.rpartition(".")[2] in _TEXTS
        for key, value in node.value:
            place = (key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                self.faults.append(Fault(*place, "expected a plain name; for common values use `defaults`"))
                continue
            if key.value in found:
                self.faults.append(Fault(*place, f"{key.value} is given twice"))
            inner = f"{path}.{key.value}" if path else key.value
            found[key.value] = self.value(value, inner, as_text=as_text)
        return found
