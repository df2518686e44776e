"""The descriptor that is compiled into a published Go module, read from its source, as a table of facts.

Two descriptors are turned into flat tables, keyed by names, so that order and comments do not count and all
else does.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message

ROOT = Path(__file__).resolve().parents[2]
Facts = dict[str, str]

# Repeated parts of descriptors whose entries have no names of their own.
UNNAMED_LISTS = {"dependency", "extension_range", "reserved_name", "reserved_range"}


def pinned(name: str) -> str:
    """The value of one variable of e2e/versions.env."""
    text = (ROOT / "e2e/versions.env").read_text()
    found = re.search(rf"^{name}=(\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} is not in e2e/versions.env"
    return found[1]


def required(module: str) -> str:
    """The version of a Go module that the Kubernetes of the tests is built with."""
    text = (ROOT / "e2e/kubernetes/go.mod").read_text()
    found = re.search(rf"^\s+{re.escape(module)} (v\S+)$", text, re.MULTILINE)
    assert found is not None, f"{module} is not required by e2e/kubernetes/go.mod"
    return found[1]


def go_module_folder(module: str, version: str, scratch: Path) -> Path:
    """Where Go keeps the source of a module, which it downloads and verifies if need be."""
    # e2e/setup leaves a link to a Go it has found or installed beside the interpreter's environment.
    go = shutil.which("go", path=os.pathsep.join((sys.prefix, os.environ.get("PATH", os.defpath))))
    assert go is not None, "no Go found; run `e2e/setup go`"
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{module}@{version}"],
        cwd=scratch,
        env=os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"},
        stdout=subprocess.PIPE,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert "Error" not in answer, f"go mod download: {answer['Error']}"
    return Path(answer["Dir"])


def go_string(literal: str) -> bytes:
    """The bytes of the inside of an interpreted Go string literal."""
    simple = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "\\": 92, '"': 34}
    parts = re.findall(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\.|[^\\]+", literal)
    assert "".join(parts) == literal
    out = bytearray()
    for part in parts:
        if not part.startswith("\\"):
            out += part.encode()
        elif part[1] == "x":
            out += bytes.fromhex(part[2:])
        elif part[1] in "uU":
            out += chr(int.from_bytes(bytes.fromhex(part[2:]))).encode()
        else:
            out.append(simple[part[1]])
    return bytes(out)


def descriptor_of_go_source(source: str) -> FileDescriptorProto:
    """The descriptor that protoc-gen-go put into a `.pb.go` file as a constant of many string literals."""
    constant = re.search(r'^const file_\w+_rawDesc = ""((?: \+\n\t".*")+)$', source, re.MULTILINE)
    assert constant is not None, "the Go file holds no descriptor in the form that protoc-gen-go writes"
    literals = re.findall(r'^\t"(.*)"(?: \+)?$', constant[1], re.MULTILINE)
    return FileDescriptorProto.FromString(b"".join(go_string(literal) for literal in literals))


def facts(file: FileDescriptorProto) -> Facts:
    """All that a descriptor says, except the file's own name and the order in which things are declared."""
    return dict(_facts_of(file, "", ()))


def _facts_of(message: Message, path: str, oneofs: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(message, DescriptorProto):
        oneofs = tuple(oneof.name for oneof in message.oneof_decl)
    for field, value in message.ListFields():
        here = f"{path}/{field.name}"
        if field.is_repeated and field.name not in UNNAMED_LISTS:
            for entry in value:
                yield f"{here}:{entry.name}", "declared"
                yield from _facts_of(entry, f"{here}:{entry.name}", oneofs)
        elif field.name == "oneof_index":
            yield here, oneofs[value]
        elif not says_nothing(message, field.name, value):
            yield here, as_text(value)


def says_nothing(message: Message, name: str, value: object) -> bool:
    """Whether a field is no fact of its own: a name is in the key, and a JSON name mostly follows from it."""
    if isinstance(message, FieldDescriptorProto) and name == "json_name":
        return value == lower_camel_case(message.name)
    return name == "name"


def as_text(value: object) -> str:
    """One value of a descriptor; of options, those as well that this process does not know."""
    if isinstance(value, Message):
        return text_format.MessageToString(value, as_one_line=True, print_unknown_fields=True)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(sorted(as_text(entry) for entry in value))
    return str(value)


def lower_camel_case(name: str) -> str:
    """The JSON name that protobuf derives from a field's name."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def differences(ours: Facts, theirs: Facts) -> list[str]:
    """One line for each fact that is not the same in both."""
    return [
        f"{key}: {ours.get(key, 'nothing')} here, {theirs.get(key, 'nothing')} there"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
