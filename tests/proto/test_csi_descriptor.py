"""`proto/csi.proto` says on the wire what the CSI project's own Go module of the pinned version says.

The truth is the descriptor that is compiled into the Go module, read from its source. The two descriptors are
turned into flat tables of facts, keyed by names, so that order and comments do not count and all else does.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FieldOptions,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import Message

from proto import csi_pb2

ROOT = Path(__file__).resolve().parents[2]
MODULE = "github.com/container-storage-interface/spec"

Facts = dict[str, str]

# Repeated parts of descriptors whose entries have no names of their own.
UNNAMED_LISTS = {"dependency", "extension_range", "reserved_name", "reserved_range"}


def pinned(name: str) -> str:
    """The value of one variable of e2e/versions.env."""
    text = (ROOT / "e2e/versions.env").read_text()
    found = re.search(rf"^{name}=(\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} is not in e2e/versions.env"
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


def our_descriptor() -> FileDescriptorProto:
    return FileDescriptorProto.FromString(csi_pb2.DESCRIPTOR.serialized_pb)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    folder = go_module_folder(MODULE, pinned("CSI_SPEC_VERSION"), tmp_path_factory.mktemp("go"))
    return descriptor_of_go_source((folder / "lib/go/csi/csi.pb.go").read_text())


def test_the_published_descriptor_is_read_whole(published: FileDescriptorProto) -> None:
    services = {service.name for service in published.service}

    assert published.package == "csi.v1"
    assert services == {"Identity", "Controller", "GroupController", "SnapshotMetadata", "Node"}
    assert pinned("CSI_SPEC_VERSION").startswith("v1.13.")


def test_csi_proto_equals_the_published_descriptor(published: FileDescriptorProto) -> None:
    assert differences(facts(our_descriptor()), facts(published)) == []


def message(file: FileDescriptorProto, name: str) -> DescriptorProto:
    return next(entry for entry in file.message_type if entry.name == name)


def field(file: FileDescriptorProto, of: str, name: str) -> FieldDescriptorProto:
    return next(entry for entry in message(file, of).field if entry.name == name)


def service(file: FileDescriptorProto, name: str) -> ServiceDescriptorProto:
    return next(entry for entry in file.service if entry.name == name)


def rename(file: FileDescriptorProto) -> None:
    field(file, "Volume", "volume_id").name = "id"


def renumber(file: FileDescriptorProto) -> None:
    field(file, "Volume", "volume_id").number = 9


def retype(file: FileDescriptorProto) -> None:
    field(file, "CapacityRange", "limit_bytes").type = FieldDescriptorProto.TYPE_UINT64


def point_to_another_message(file: FileDescriptorProto) -> None:
    field(file, "CreateVolumeRequest", "capacity_range").type_name = ".csi.v1.Topology"


def repeat(file: FileDescriptorProto) -> None:
    field(file, "Volume", "volume_id").label = FieldDescriptorProto.LABEL_REPEATED


def leave_the_oneof(file: FileDescriptorProto) -> None:
    field(file, "VolumeCapability", "block").ClearField("oneof_index")


def rename_the_oneof(file: FileDescriptorProto) -> None:
    message(file, "VolumeCapability").oneof_decl[0].name = "access"


def choose_a_json_name(file: FileDescriptorProto) -> None:
    field(file, "Volume", "volume_id").json_name = "id"


def expose_a_secret(file: FileDescriptorProto) -> None:
    field(file, "CreateVolumeRequest", "secrets").ClearField("options")


def add_an_unknown_option(file: FileDescriptorProto) -> None:
    # Field 1061, a varint, which nobody has declared.
    field(file, "Volume", "volume_id").options.CopyFrom(FieldOptions.FromString(b"\xa8\x42\x01"))


def drop_a_reservation(file: FileDescriptorProto) -> None:
    message(file, "NodeGetVolumeStatsResponse").ClearField("reserved_range")


def stabilize_a_message(file: FileDescriptorProto) -> None:
    message(file, "VolumeHealth").ClearField("options")


def renumber_an_enum_value(file: FileDescriptorProto) -> None:
    message(file, "VolumeUsage").enum_type[0].value[2].number = 7


def stabilize_an_enum_value(file: FileDescriptorProto) -> None:
    message(file, "VolumeCapability").nested_type[2].enum_type[0].value[6].ClearField("options")


def add_an_enum_value(file: FileDescriptorProto) -> None:
    file.enum_type[0].value.add(name="NEW", number=9)


def stop_streaming(file: FileDescriptorProto) -> None:
    service(file, "SnapshotMetadata").method[0].server_streaming = False


def drop_a_method(file: FileDescriptorProto) -> None:
    del file.service[0].method[0]


def answer_with_another_message(file: FileDescriptorProto) -> None:
    file.service[0].method[0].output_type = ".csi.v1.ProbeResponse"


def stabilize_a_service(file: FileDescriptorProto) -> None:
    service(file, "SnapshotMetadata").ClearField("options")


def renumber_an_extension(file: FileDescriptorProto) -> None:
    next(entry for entry in file.extension if entry.name == "csi_secret").number = 1058


def move_the_package(file: FileDescriptorProto) -> None:
    file.package = "csi.v2"


def rename_the_go_package(file: FileDescriptorProto) -> None:
    file.options.go_package = "example.com/csi"


def import_less(file: FileDescriptorProto) -> None:
    del file.dependency[0]


@pytest.mark.parametrize(
    "change",
    [
        rename,
        renumber,
        retype,
        point_to_another_message,
        repeat,
        leave_the_oneof,
        rename_the_oneof,
        choose_a_json_name,
        expose_a_secret,
        add_an_unknown_option,
        drop_a_reservation,
        stabilize_a_message,
        renumber_an_enum_value,
        stabilize_an_enum_value,
        add_an_enum_value,
        stop_streaming,
        drop_a_method,
        answer_with_another_message,
        stabilize_a_service,
        renumber_an_extension,
        move_the_package,
        rename_the_go_package,
        import_less,
    ],
    ids=lambda change: change.__name__,
)
def test_the_comparison_sees(change: Callable[[FileDescriptorProto], None]) -> None:
    changed = our_descriptor()
    change(changed)

    assert differences(facts(changed), facts(our_descriptor())) != []


def test_the_comparison_does_not_see_the_order_of_declarations() -> None:
    turned = our_descriptor()
    turned.message_type.reverse()
    turned.service.reverse()

    assert differences(facts(turned), facts(our_descriptor())) == []
