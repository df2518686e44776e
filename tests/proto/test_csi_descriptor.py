"""`proto/csi.proto` says on the wire what the CSI project's own Go module of the pinned version says."""

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FieldOptions,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

from proto import csi_pb2
from tests.proto.go_descriptors import descriptor_of_go_source, differences, facts, go_module_folder, pinned

MODULE = "github.com/container-storage-interface/spec"


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
