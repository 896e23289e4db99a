"""Build hook: the gRPC stubs and the dashboard are generated, never committed."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratedHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What an isolated build needs beyond pyproject.toml: a Node.js, where the system has none."""
        web = _bundling(self.root)
        return [] if web is None or web.has_system_node() else [web.NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version, build_data
        self._make_stubs()
        self._make_dashboard()

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


def _bundling(root: str) -> ModuleType | None:
    path = pathlib.Path(root) / "web" / "bundle.py"
    spec = importlib.util.spec_from_file_location("dgpu_web_bundle", path)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
