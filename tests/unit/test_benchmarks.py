"""The benchmarks can be found and run by name; what they measure is asserted nowhere."""

from __future__ import annotations

import ast
import pathlib
import runpy

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
RUNNER = "run"
BENCHMARKS = sorted(
    path.stem for path in FOLDER.glob("*.py") if path.stem != RUNNER and not path.stem.startswith("_")
)


def test_the_runner_knows_every_benchmark() -> None:
    order = runpy.run_path(str(FOLDER / f"{RUNNER}.py"), run_name="looked_at")["ORDER"]
    assert sorted(order) == BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_gives_its_figures_through_run_without_arguments(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "run" in functions
    assert functions["run"].args.args == []
    assert any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(functions["run"]))
