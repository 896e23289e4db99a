"""Build hook: the gRPC stubs, the dashboard and the compiled core are generated, never committed."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratedHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What an isolated build needs beyond pyproject.toml: a Node.js, where the system has none; what compiles the
        core.
        """
        web, core = _bundling(self.root), _compiling(self.root)
        node = [] if web is None or web.has_system_node() else [web.NODE_PACKAGE]
        return node + (core.REQUIREMENTS if self.target_name == "wheel" and core.c_compiler() else [])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._make_stubs()
        self._make_dashboard()
        # An editable installation uses what `make core` makes: it must not wait for a compiler.
        if self.target_name == "wheel" and version != "editable":
            self._compile_core(build_data)
            self._compile_native(build_data)

    def _make_stubs(self) -> None:
        from grpc_tools import protoc

        source = pathlib.Path(self.root) / "src"
        for proto in sorted((source / "dgpu" / "wire" / "proto").glob("*.proto")):
            arguments = ["protoc", f"-I{source}", f"--python_out={source}", f"--pyi_out={source}", str(proto)]
            if protoc.main(arguments) != 0:
                raise RuntimeError(f"protoc could not compile {proto}")

    def _make_dashboard(self) -> None:
        """Without Node.js or a network there is no dashboard, and all else works: the build goes on."""
        web = _bundling(self.root)
        if web is None:
            return
        try:
            web.bundle(pathlib.Path(self.root))
        except web.NotBuilt as reason:
            self.app.display_warning(f"The dashboard is not built: {reason}. `make web` builds it later.")

    def _compile_core(self, build_data: dict[str, Any]) -> None:
        """Not into the sources: the wheel takes what was made for it, never what was left there for another Python."""
        reason = _compiling(self.root).why_not()
        into = pathlib.Path(self.root, "build", "wheel")
        if reason is None:
            # In a process of its own: mypyc changes setuptools for good, and ends the process when it finds an error.
            made = subprocess.run(
                [sys.executable, "compile_core.py", "--into", str(into)], cwd=self.root, check=False
            )
            reason = "its compilation failed" if made.returncode != 0 else None
        if reason is not None:
            self.app.display_warning(f"The core is not compiled, only slower: {reason}.")
            return
        files = {str(path): f"dgpu/_compiled/{path.relative_to(into)}" for path in sorted(into.rglob("*.so"))}
        build_data["force_include"].update(files)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compile_native(self, build_data: dict[str, Any]) -> None:
        core = _compiling(self.root)
        root = pathlib.Path(self.root)
        for made in core.compile_native(root, root / "build" / "native") if core.c_compiler() else ():
            build_data["force_include"][str(made)] = f"dgpu/_native/{made.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def _bundling(root: str) -> ModuleType | None:
    path = pathlib.Path(root) / "web" / "bundle.py"
    return _module(path, "dgpu_web_bundle") if path.is_file() else None


def _compiling(root: str) -> ModuleType:
    return _module(pathlib.Path(root) / "compile_core.py", "dgpu_compile_core")


def _module(path: pathlib.Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
