"""Runs the benchmarks: one JSON line per figure on stdout, a table on stderr.

make bench                   all of them
make bench ONLY="decision"   some
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterator

from dgpu.core_form import FORM

HERE = pathlib.Path(__file__).parent
ORDER = [
    "decision",
    "foresight",
    "openb",
    "muri",
    "journal",
    "etcd",
    "keeper",
    "rest",
    "functions",
    "warm",
    "flood",
    "metrics",
    "drain",
    "recovery",
    "board",
    "pages",
    "telemetry",
]


def figures(name: str) -> Iterator[dict[str, object]]:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"no benchmark named {name}; there are: {', '.join(ORDER)}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield from module.run()


def main() -> None:
    names = sys.argv[1:] or ORDER
    sys.path.insert(0, str(HERE))
    load = os.getloadavg()[0]
    machine = f"python {platform.python_version()}, {os.cpu_count()} cores, load {load:.2f}"
    print(f"{machine}, core {FORM}", file=sys.stderr)
    for name in names:
        if not (HERE / f"{name}.py").exists():
            raise SystemExit(f"no benchmark named {name}; there are: {', '.join(ORDER)}")
        print(f"\n{name}", file=sys.stderr)
        for figure in figures(name):
            figure["load"] = round(
                os.getloadavg()[0], 1
            )  # of the last minute: what else the machine had to do
            print(json.dumps({"benchmark": name, **figure, "core": FORM}), flush=True)
            shown = "  ".join(
                f"{key}={value}" for key, value in figure.items() if key not in {"figure", "value", "unit"}
            )
            value = f"{figure.get('value', '')} {figure.get('unit', '')}"
            print(f"  {figure['figure']:<74} {value:>16}  {shown}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
