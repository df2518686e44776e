"""Build hook: compiles every `proto/*.proto` into the Python modules and type stubs beside it.

Runs for wheels and for editable installs alike, so that `from proto import csi_pb2` works after
`pip install` and nothing generated is ever committed. Needs grpcio-tools and mypy-protobuf, which
`[build-system]` in pyproject.toml asks for.
"""

import os
import shutil
import sysconfig
from importlib import resources
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileProto(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own hooks leave its parameter out
    """Generates `<name>_pb2.py`, `<name>_pb2_grpc.py` and the `.pyi` of both for each `.proto` file."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        """Compile before hatchling collects files.

        Raises:
            RuntimeError: the compiler refused a file (its messages are on stderr) or a plugin is missing.

        """
        root = Path(self.root)
        well_known = resources.files("grpc_tools") / "_proto"
        # Paths are given relative to the project's root: they become the import path `proto.<name>_pb2`.
        sources = sorted(str(path.relative_to(root)) for path in (root / "proto").glob("*.proto"))
        command = [
            "protoc",
            f"--proto_path={root}",
            f"--proto_path={well_known}",
            f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
            f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
            *(f"--{kind}_out={root}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
            *sources,
        ]
        if protoc.main(command) != 0:
            raise RuntimeError(f"protoc could not compile {', '.join(sources)}; its messages are above")


def _plugin(name: str) -> str:
    """Path of a protoc plugin: beside this interpreter, or on PATH in an isolated build."""
    search_path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    found = shutil.which(name, path=search_path)
    if found is None:
        raise RuntimeError(f"{name} is not installed; install mypy-protobuf into the environment that builds")
    return found
