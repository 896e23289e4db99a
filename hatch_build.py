"""Build hook: the gRPC stubs are generated, never committed."""

from __future__ import annotations

import pathlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version, build_data
        from grpc_tools import protoc

        source = pathlib.Path(self.root) / "src"
        for proto in sorted((source / "dgpu" / "wire" / "proto").glob("*.proto")):
            arguments = ["protoc", f"-I{source}", f"--python_out={source}", f"--pyi_out={source}", str(proto)]
            if protoc.main(arguments) != 0:
                raise RuntimeError(f"protoc could not compile {proto}")
