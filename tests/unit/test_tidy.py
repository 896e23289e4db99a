"""House rules that a linter does not know. Numbers here only ever go down."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MAX_LINES_OF_A_MODULE = 400
MAX_LINES_OF_A_FUNCTION = 50

# Exceptions, each with its present length. A change that shortens one lowers its number here, or removes the entry.
LONG_MODULES = {
    "src/dgpu/agent/lifecycle.py": 462,
    "src/dgpu/service/loop/runtime.py": 459,
    "tests/integration/agent/test_agent_keeper.py": 461,
    "tests/integration/grpc/test_agent_server.py": 497,
    "tests/unit/config/test_config.py": 428,
    "tests/unit/core/test_health.py": 439,
    "tests/unit/journal/test_file_journal.py": 423,
    "tests/unit/rest/test_requests.py": 471,
    "tests/unit/service/test_agents.py": 452,
}
LONG_FUNCTIONS = {
    "src/dgpu/cli/tenant.py set_tenant": 54,
    "tests/e2e/test_alert_story.py test_a_killed_agent_is_told_by_webhook_and_so_is_its_return": 58,
    "tests/unit/core/stories/test_gpu_parole.py test_a_dead_gpu_comes_back_by_parole": 54,
}

# Words that say nothing about what a thing is.
EMPTY_WORDS = {
    "manager",
    "helper",
    "helpers",
    "util",
    "utils",
    "common",
    "handler",
    "processor",
    "info",
    "base",
}
UNFINISHED = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|raise NotImplemented" r"Error"
)  # in parts: this file is read, too
MACHINE_PATH = re.compile(r"/(?:work/|root/\.|home/[a-z]+/)")
REGISTRY = re.compile(r"--index-url|--extra-index-url|\"resolved\":|files\.pythonhosted")


def tracked() -> list[pathlib.Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of the project's own files")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def python_files() -> list[pathlib.Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def product_files() -> list[pathlib.Path]:
    return [path for path in python_files() if (ROOT / "src") in path.parents]


def functions(path: pathlib.Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def where(path: pathlib.Path, line: int | None = None) -> str:
    name = str(path.relative_to(ROOT))
    return name if line is None else f"{name}:{line}"


def check_lengths(lengths: list[tuple[str, int]], limit: int, exceptions: dict[str, int]) -> None:
    """No new exception, none that has grown, and none with a number that is too high by now."""
    long = [(name, length) for name, length in lengths if length > limit]
    assert sorted(long) == sorted(exceptions.items()), f"Longer than {limit} lines, against the exceptions."


def test_modules_stay_small() -> None:
    """A stranger reads a module in one sitting."""
    lengths = [(where(path), len(path.read_text().splitlines())) for path in python_files()]
    check_lengths(lengths, MAX_LINES_OF_A_MODULE, LONG_MODULES)


def test_functions_stay_small() -> None:
    lengths = [
        (f"{where(path)} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in python_files()
        for node in functions(path)
    ]
    check_lengths(lengths, MAX_LINES_OF_A_FUNCTION, LONG_FUNCTIONS)


def test_names_say_what_a_thing_is() -> None:
    empty = [where(path) for path in product_files() if set(path.stem.split("_")) & EMPTY_WORDS]
    for path in product_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                words = {word.lower() for word in re.findall(r"[A-Z][a-z]*", node.name)}
                if words & EMPTY_WORDS:
                    empty.append(f"{where(path, node.lineno)} {node.name}")
    assert empty == []


def test_nothing_is_left_unfinished() -> None:
    found = [
        where(path, number)
        for path in python_files()
        if path != pathlib.Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        if path == pathlib.Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            where(path, number)
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATH.search(line)
            or (REGISTRY.search(line) and path.suffix in {".lock", ".txt", ".json"})
        ]
    assert found == []


def test_every_test_asserts_something() -> None:
    """A test without an assertion cannot fail for the right reason."""
    seen = re.compile(r"Assert\(|'raises'|assert_|check_|expect")
    silent = [
        f"{where(path, node.lineno)} {node.name}"
        for path in python_files()
        if (ROOT / "tests") in path.parents
        for node in functions(path)
        if node.name.startswith("test_") and not seen.search(ast.dump(node))
    ]
    assert silent == []


def test_the_two_readmes_are_kept_in_step() -> None:
    """The same commands, in the same order, in both languages."""
    fences = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
    english, chinese = (
        fences.findall((ROOT / name).read_text()) for name in ("README.md", "README.zh-CN.md")
    )

    def commands(block: str) -> list[str]:
        return [
            line.split("#")[0].strip()
            for line in block.splitlines()
            if line.strip() and not line.startswith("#")
        ]

    assert [commands(block) for block in english] == [commands(block) for block in chinese]
    assert len(english) > 0
