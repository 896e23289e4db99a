"""Prints the shapes of the server's answers as TypeScript, from the structs in dgpu.wire. `bundle.py types` calls it.

Only the type check needs them: the bundler drops types, so an installation does not run this.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import inspect

MODULES = (
    "answers",
    "alert_answers",
    "audit_answers",
    "board_answers",
    "call_answers",
    "cluster_answers",
    "file_answers",
    "foresight_answers",
    "history_answers",
    "link_answers",
    "output_answers",
    "scheduler_answers",
    "secret_answers",
    "service_answers",
    "token_answers",
)


class NotSupported(Exception):  # noqa: N818 - it names the type
    """A kind of type that no answer has used so far: add it here."""


def render(structs: Iterable[type[msgspec.Struct]]) -> str:
    """An interface for each struct, and for all that they lead to, by name."""
    writer = _Writer()
    for struct in inspect.multi_type_info(tuple(structs)):
        writer.text_of(struct)
    return "\n".join(text for _, text in sorted(writer.named.items()))


class _Writer:
    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self._classes: dict[str, type] = {}

    def text_of(self, kind: inspect.Type) -> str:
        match kind:
            case inspect.AnyType() | inspect.RawType():
                return "unknown"
            case inspect.NoneType():
                return "null"
            case inspect.BoolType():
                return "boolean"
            case inspect.IntType() | inspect.FloatType():
                return "number"
            case inspect.StrType() | inspect.DateTimeType():
                return "string"
            case inspect.LiteralType():
                return _union(json.dumps(value) for value in kind.values)
            case inspect.UnionType():
                return _union(self.text_of(each) for each in kind.types)
            case inspect.ListType() | inspect.VarTupleType():
                return f"{_grouped(self.text_of(kind.item_type))}[]"
            case inspect.TupleType():
                return f"[{', '.join(self.text_of(each) for each in kind.item_types)}]"
            case inspect.DictType():
                return self._record(kind)
            case inspect.EnumType():
                return self._enum(kind.cls)
            case inspect.StructType():
                return self._struct(kind)
        raise NotSupported(repr(kind))

    def _record(self, kind: inspect.DictType) -> str:
        key, value = self.text_of(kind.key_type), self.text_of(kind.value_type)
        text = f"Record<{key}, {value}>"
        return text if isinstance(kind.key_type, inspect.StrType) else f"Partial<{text}>"

    def _enum(self, cls: type) -> str:
        if self._is_new(cls):
            values = _union(json.dumps(each.value) for each in cls)  # type: ignore[attr-defined]
            self.named[cls.__name__] = f"export type {cls.__name__} = {values};\n"
        return cls.__name__

    def _struct(self, kind: inspect.StructType) -> str:
        name = kind.cls.__name__
        if self._is_new(kind.cls):
            self.named[name] = ""  # a struct may contain itself
            if kind.array_like:
                items = [*_tag(kind), *(self.text_of(field.type) for field in kind.fields)]
                self.named[name] = f"export type {name} = [{', '.join(items)}];\n"
            else:
                lines = "".join(f"  {line};\n" for line in self._fields(kind))
                self.named[name] = f"export interface {name} {{\n{lines}}}\n"
        return name

    def _fields(self, kind: inspect.StructType) -> Iterator[str]:
        for tag in _tag(kind):
            yield f"{kind.tag_field}: {tag}"
        omits = kind.cls.__struct_config__.omit_defaults
        for field in kind.fields:
            mark = "?" if _is_unset(field) or (omits and not field.required) else ""
            name = field.encode_name if field.encode_name.isidentifier() else json.dumps(field.encode_name)
            yield f"{name}{mark}: {self.text_of(field.type)}"

    def _is_new(self, cls: type) -> bool:
        known = self._classes.setdefault(cls.__name__, cls)
        if known is not cls:
            raise NotSupported(f"{known.__module__} and {cls.__module__} both have a {cls.__name__}")
        return cls.__name__ not in self.named


def _tag(kind: inspect.StructType) -> list[str]:
    return [] if kind.tag is None else [json.dumps(kind.tag)]


def _is_unset(field: inspect.Field) -> bool:
    """Its default is UNSET, and it is not sent then."""
    return not field.required and field.default is field.default_factory is msgspec.NODEFAULT


def _union(texts: Iterable[str]) -> str:
    """Null comes last, each once: int | float is number."""
    found = dict.fromkeys(texts)
    return " | ".join(sorted(found, key=lambda text: text == "null"))


def _grouped(text: str) -> str:
    return f"({text})" if " | " in text else text


def answers() -> list[type[msgspec.Struct]]:
    """All structs with fields that these modules define."""
    modules = [importlib.import_module(f"dgpu.wire.{name}") for name in MODULES]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
        and value.__struct_fields__
    ]


if __name__ == "__main__":
    sys.stdout.write(
        f"// Made by web/wire_types.py. Do not edit: change src/dgpu/wire.\n\n{render(answers())}"
    )
