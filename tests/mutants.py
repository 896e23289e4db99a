r"""Draws mutants of the core and says which of them the tests notice.

    DGPU_INTERPRETED=1 .venv/bin/python -m pytest -q -s -p tests.mutants --mutants 100 --mutant-seed 1 \
        -m "not slow" tests/unit/core tests/golden

The tests run once to learn which functions each of them calls. Then, for each mutant, a forked process changes one
function and runs the tests that call it, shortest first, until one fails. Each mutant is printed with its line. Many
that survive change no decision: a bound on memory, a tie between equal times. The rest are holes in the tests.
"""

from __future__ import annotations

import ast
import copy
import importlib
import os
import random
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

CORE: Final = Path(__file__).parents[1] / "src" / "dgpu" / "core"
# Checks of invariants notice mutants, they are not mutated themselves.
LEFT_OUT: Final = ("invariants.py", "invariants_of_workers.py")
CHECKS: Final = ("facts", "check")  # functions that only checks call
COMMUTATIVE: Final = ("min", "max")
BROKEN: Final = 9  # the exit code of a process that could not apply its mutant
CPU_SECONDS: Final = 40  # a mutant that takes longer hangs, and is noticed
COMPARED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: Final = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The mutants of one node: their kind, and the node to put in its place."""
    twin: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARED:
            twin.ops = [COMPARED[type(operator)]()]
            yield "comparison", twin
        case ast.BoolOp():
            twin.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", twin
        case ast.BinOp() | ast.AugAssign() if type(node.op) in COMPUTED:
            twin.op = COMPUTED[type(node.op)]()
            yield "arithmetic", twin
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield "constant", ast.Constant(node.value + 1)
        case ast.If() | ast.IfExp() | ast.While():
            twin.test = ast.UnaryOp(ast.Not(), twin.test)
            yield "condition", twin
        case ast.Return(value=ast.expr()) if not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            yield "returned value", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "dropped statement", ast.Pass()
        case ast.Call(args=[one, other, *_]) if not isinstance(one, ast.Starred) and not isinstance(
            other, ast.Starred
        ):
            if isinstance(node.func, ast.Name) and node.func.id in COMMUTATIVE:
                return
            twin.args[:2] = reversed(twin.args[:2])
            yield "swapped arguments", twin


class Place:
    """One mutant: a node in a function of the core, and what replaces it."""

    def __init__(self, path: Path, function: str, at: int, kind: str, line: int, nth: int) -> None:
        self.path, self.function, self.kind, self.line = path, function, kind, line
        self._at = at  # the number of the node in a walk through the tree
        self._nth = nth  # of several changes of one node

    def __str__(self) -> str:
        text = self.path.read_text().splitlines()[self.line - 1].strip()
        return f"{self.path.relative_to(CORE)}:{self.line} {self.function}: {self.kind}: {text}"

    def code(self) -> types.CodeType:
        tree = ast.parse(self.path.read_text())
        target = list(ast.walk(tree))[self._at]
        replacement = ast.copy_location(list(changes(target))[self._nth][1], target)
        swapped = ast.fix_missing_locations(_Swap(target, replacement).visit(tree))
        found: Any = compile(swapped, str(self.path), "exec")
        for name in self.function.split("."):
            found = next(each for each in found.co_consts if getattr(each, "co_name", "") == name)
        assert isinstance(found, types.CodeType)
        return found

    def apply(self) -> None:
        """Every reference to the function runs the mutant from now on."""
        owner: Any = importlib.import_module(
            "dgpu.core." + ".".join(self.path.relative_to(CORE).with_suffix("").parts)
        )
        *classes, name = self.function.split(".")
        for each in classes:
            owner = getattr(owner, each)
        found = owner.__dict__[name]
        if hasattr(found, "cache_clear"):
            found.cache_clear()  # else answers of the plain core remain
        _original(found, name).__code__ = self.code()


def _original(found: Any, name: str) -> Any:
    """The function behind a property, a class method or a decorator."""
    for wrapper in ("fget", "__func__", "__wrapped__"):
        found = getattr(found, wrapper, found)
    if found.__code__.co_name == name:
        return found
    held = [cell.cell_contents for cell in found.__closure__ or ()]
    return next(each for each in held if getattr(each, "__name__", "") == name)


class _Swap(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target, self._replacement = target, replacement

    def visit(self, node: ast.AST) -> Any:
        return self._replacement if node is self._target else self.generic_visit(node)


def places() -> list[Place]:
    found: list[Place] = []
    for path in sorted(CORE.rglob("*.py")):
        if path.name not in LEFT_OUT:
            tree = ast.parse(path.read_text())
            numbers = {node: at for at, node in enumerate(ast.walk(tree))}
            for name, function in _functions(tree, ""):
                for node in _body_of(function.body):
                    for nth, (kind, _) in enumerate(changes(node)):
                        found.append(Place(path, name, numbers[node], kind, node.lineno, nth))
    return found


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in CHECKS:
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _body_of(nodes: Iterable[ast.AST]) -> Iterator[Any]:
    """Without functions inside of functions: those of a decorator exist before the mutant does."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef):
            yield node
            yield from _body_of(ast.iter_child_nodes(node))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=int, default=0, help="how many mutants to draw")
    parser.addoption("--mutant-seed", type=int, default=0, help="the seed of the draw")


class Watch:
    """Which functions of the core each test calls, and how long it takes."""

    def __init__(self) -> None:
        self.calls: dict[pytest.Item, set[tuple[str, int]]] = {}
        self.seconds: dict[pytest.Item, float] = {}

    def run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        called = self.calls[item] = set()
        begin = time.process_time()
        root = str(CORE)

        def note(frame: types.FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(root):
                called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        sys.setprofile(note)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        finally:
            sys.setprofile(None)
        self.seconds[item] = time.process_time() - begin

    def of(self, code: types.CodeType) -> list[pytest.Item]:
        """The tests that call the function, shortest first."""
        key = (code.co_filename, code.co_firstlineno)
        return sorted(
            (item for item, called in self.calls.items() if key in called),
            key=lambda item: self.seconds[item],
        )


def is_noticed(place: Place, items: list[pytest.Item], session: pytest.Session) -> bool:
    """In a forked process, so that each mutant begins with the plain core."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) != BROKEN, f"not applied: {place}"
        return status != 0
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        place.apply()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for item in items:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.testsfailed:
                os._exit(1)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the process must not go on as a second test run
        traceback.print_exc()
        os._exit(BROKEN)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    wanted = session.config.getoption("--mutants")
    if not wanted:
        return None
    watch = Watch()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        watch.run(item, following)
    if session.testsfailed:
        raise session.Failed("the tests fail without a mutant")
    everything = places()
    drawn = random.Random(session.config.getoption("--mutant-seed")).sample(everything, wanted)
    report = session.config.pluginmanager.get_plugin("terminalreporter")
    report.write_line(f"\n{len(everything)} places")
    survivors = 0
    for number, place in enumerate(drawn):
        items = watch.of(place.code())
        noticed = is_noticed(place, items, session)
        survivors += not noticed
        report.write_line(f"{number} {'noticed' if noticed else 'SURVIVED'} ({len(items)} tests) {place}")
    report.write_line(f"{wanted - survivors} of {wanted} noticed")
    return True
