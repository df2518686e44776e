"""Requests over a real socket: what reaches the operations, and what is refused before it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grpc
import pytest
from google.protobuf.message import Message

from csi.commands import (
    AccessMode,
    Capability,
    CreateVolume,
    DeleteVolume,
    PublishVolume,
    StageVolume,
    ValidateVolume,
)
from csi.handles import VolumeHandle
from csi.node.ports import Credentials
from csi.parameters import ClassParameters
from proto import csi_pb2, waymark_pb2
from tests.csi.conftest import HANDLE, Served

MIB, GIB = 1 << 20, 1 << 30
MOST = 256_000_000 * 4 * MIB
KEY = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw=="
SECRETS = {"userID": "kubernetes", "userKey": KEY}
LEAST = {"clusterID": "prod", "pool": "rbd"}
XFS_CLASS = LEAST | {"csi.storage.k8s.io/fstype": "xfs"}
Mode = csi_pb2.VolumeCapability.AccessMode
HANDLE_DECODED = VolumeHandle("prod", 2, "7c1f53a0-3a3b-4a0e-8f0e-5e6f1f2a9d11")


def mounted(
    fs_type: str = "",
    flags: tuple[str, ...] = (),
    mode: Mode.Mode.ValueType = Mode.SINGLE_NODE_WRITER,
    group: str = "",
) -> csi_pb2.VolumeCapability:
    mount = csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags, volume_mount_group=group)
    return csi_pb2.VolumeCapability(mount=mount, access_mode=Mode(mode=mode))


def block(mode: Mode.Mode.ValueType = Mode.SINGLE_NODE_WRITER) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=Mode(mode=mode))


def create(**changed: object) -> csi_pb2.CreateVolumeRequest:
    fields: dict[str, object] = {"name": "pvc-1", "volume_capabilities": [mounted()], "parameters": LEAST}
    return csi_pb2.CreateVolumeRequest(**(fields | changed))  # type: ignore[arg-type]  # built from a table


def sized(required: int = 0, limit: int = 0, **parameters: str) -> csi_pb2.CreateVolumeRequest:
    asked = csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit)
    return create(capacity_range=asked, parameters=LEAST | parameters)


def refusal(call: Callable[..., object], *arguments: object) -> tuple[grpc.StatusCode, str]:
    """Code and text of a call that must fail."""
    with pytest.raises(grpc.RpcError) as refused:
        call(*arguments)
    error = cast("grpc.Call", refused.value)
    assert not [key for key, _ in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    return error.code(), error.details() or ""


def created(served: Served, request: csi_pb2.CreateVolumeRequest) -> CreateVolume:
    served.controller.CreateVolume(request)
    command = served.operations.commands[-1]
    assert isinstance(command, CreateVolume)
    return command


# CreateVolume


def test_a_create_reaches_the_operation_whole(served: Served) -> None:
    topology = csi_pb2.TopologyRequirement(
        requisite=[csi_pb2.Topology(segments={"zone": "b", "rack": "1"})],
        preferred=[csi_pb2.Topology(segments={"zone": "a"})],
    )
    request = create(
        volume_capabilities=[
            mounted("xfs", ("noatime",)),
            mounted("xfs", ("noatime",), Mode.MULTI_NODE_READER_ONLY),
        ],
        capacity_range=csi_pb2.CapacityRange(required_bytes=GIB, limit_bytes=2 * GIB),
        parameters=LEAST | {"csi.storage.k8s.io/pvc/name": "claim"},
        secrets=SECRETS,
        accessibility_requirements=topology,
    )

    command = created(served, request)

    assert command.name == "pvc-1"
    assert (command.required_bytes, command.limit_bytes, command.size_bytes) == (GIB, 2 * GIB, GIB)
    assert (command.access, command.fs_type, command.mount_flags) == ("mount", "xfs", ("noatime",))
    assert command.access_modes == (AccessMode.SINGLE_NODE_WRITER, AccessMode.MULTI_NODE_READER_ONLY)
    assert command.parameters == ClassParameters("prod", "rbd")
    assert command.topology.requisite == ((("rack", "1"), ("zone", "b")),)
    assert command.topology.preferred == ((("zone", "a"),),)
    assert command.credentials == Credentials("kubernetes", KEY)
    assert command.metadata == {"csi.storage.k8s.io/pvc/name": "claim"}


@pytest.mark.parametrize(
    ("request_", "fs_type"),
    [
        (create(), "ext4"),
        (create(parameters=XFS_CLASS), "xfs"),
        (create(parameters=XFS_CLASS, volume_capabilities=[mounted("ext4")]), "ext4"),
        (create(volume_capabilities=[block()]), ""),
        (create(volume_capabilities=[block(Mode.MULTI_NODE_MULTI_WRITER)]), ""),
    ],
)
def test_the_file_system_is_the_requests_then_the_classes_then_ext4(
    served: Served, request_: csi_pb2.CreateVolumeRequest, fs_type: str
) -> None:
    assert created(served, request_).fs_type == fs_type


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a" * 128,
        "ü" * 64,
        "../../etc/passwd",
        "name with blanks",
        "tab\tand\nline",
        "%s{}$(x);'\"",
        ".",
        "-rf",
        "😀",
    ],
)
def test_any_name_that_csi_allows_is_taken_as_it_is(served: Served, name: str) -> None:
    assert created(served, create(name=name)).name == name


@pytest.mark.parametrize(
    ("required", "limit", "size"),
    [
        (0, 0, GIB),
        (1, 0, MIB),
        (MIB, 0, MIB),
        (MIB + 1, 0, 2 * MIB),
        (GIB, GIB, GIB),
        (0, 5 * GIB, GIB),
        (0, 3 * MIB + 5, 3 * MIB),
        (MIB + 1, 2 * MIB, 2 * MIB),
        (MOST, 0, MOST),
    ],
)
def test_a_size_is_the_smallest_whole_number_of_steps(
    served: Served, required: int, limit: int, size: int
) -> None:
    command = created(served, sized(required, limit))

    assert (command.required_bytes, command.limit_bytes, command.size_bytes) == (required, limit, size)


def test_without_an_object_map_an_image_may_have_more_objects(served: Served) -> None:
    assert created(served, sized(MOST + 1, imageFeatures="layering")).size_bytes == MOST + MIB


INVALID, OUT_OF_RANGE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (create(name=""), INVALID, "name is missing"),
        (create(name="a" * 129), INVALID, "name has 129 bytes; at most 128"),
        (create(name="ü" * 65), INVALID, "name has 130 bytes"),
        (create(name="a\0b"), INVALID, "control characters"),
        (create(name="a\x85b"), INVALID, "control characters"),
        (create(volume_capabilities=[]), INVALID, "volume_capabilities is missing"),
        (create(volume_capabilities=[mounted(), block()]), INVALID, "both block and mount"),
        (create(volume_capabilities=[mounted("ext4"), mounted("xfs")]), INVALID, "different file systems"),
        (create(volume_capabilities=[csi_pb2.VolumeCapability()]), INVALID, "no access type"),
        (create(volume_capabilities=[block(Mode.UNKNOWN)]), INVALID, "no access mode"),
        (create(volume_capabilities=[mounted("btrfs")]), INVALID, "known are: ext4, xfs"),
        (create(volume_capabilities=[mounted(group="7")]), INVALID, "volume_mount_group"),
        (create(volume_capabilities=[mounted(flags=("a\nb",))]), INVALID, "mount flag"),
        (
            create(volume_capabilities=[mounted(mode=Mode.MULTI_NODE_MULTI_WRITER)]),
            INVALID,
            "use a block volume",
        ),
        (create(volume_capabilities=[mounted(mode=Mode.SINGLE_NODE_MULTI_WRITER)]), INVALID, "is not served"),
        (
            create(volume_capabilities=[block(Mode.MULTI_NODE_SINGLE_WRITER)]),
            INVALID,
            "known are: SINGLE_NODE",
        ),
        (
            create(volume_capabilities=[mounted(flags=("x" * 100,) * 41)]),
            INVALID,
            "mount_flags has 4100 bytes",
        ),
        (create(parameters={}), INVALID, "clusterID is missing"),
        (create(parameters=LEAST | {"size": "1"}), INVALID, "unknown parameter 'size'"),
        (create(parameters=LEAST | {"mkfsOptions": "x" * 4096}), INVALID, "at most 4096"),
        (create(mutable_parameters={"iops": "1"}), INVALID, "mutable_parameters are not supported"),
        (create(volume_content_source=csi_pb2.VolumeContentSource()), INVALID, "volume_content_source"),
        (create(secrets={"userID": "kubernetes"}), UNAUTHENTICATED, "userKey"),
        (create(secrets={"userID": "kubernetes", "userKey": KEY + "\n"}), UNAUTHENTICATED, "white space"),
        (sized(-1), INVALID, "must not be negative"),
        (sized(limit=-1), INVALID, "must not be negative"),
        (sized(2 * MIB, MIB), OUT_OF_RANGE, "below required_bytes"),
        (sized(MIB + 1, 2 * MIB - 1), OUT_OF_RANGE, "multiple of 1048576 bytes"),
        (sized(0, MIB - 1), OUT_OF_RANGE, "multiple of 1048576 bytes"),
        (sized(2**63 - 1), OUT_OF_RANGE, "more than a volume can have"),
        (sized(MOST + 1), OUT_OF_RANGE, "at most 256000000"),
    ],
)
def test_a_create_that_is_wrong_is_refused_and_reaches_nothing(
    served: Served, request_: csi_pb2.CreateVolumeRequest, code: grpc.StatusCode, says: str
) -> None:
    found_code, text = refusal(served.controller.CreateVolume, request_)

    assert (found_code, says in text) == (code, True), text
    assert served.operations.commands == []


# The others

WRONG_IDS = ("volume-1", "../../etc", "a" * 128, HANDLE + "0", "ü")


def test_a_delete_of_what_no_volume_of_ours_is_called_succeeds(served: Served) -> None:
    for volume_id in WRONG_IDS:
        served.controller.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id=volume_id))

        assert served.operations.commands[-1] == DeleteVolume(volume_id, None)


def test_a_delete_reaches_the_operation_with_handle_and_identity(served: Served) -> None:
    served.controller.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id=HANDLE, secrets=SECRETS))

    assert served.operations.commands == [
        DeleteVolume(HANDLE, HANDLE_DECODED, Credentials("kubernetes", KEY))
    ]


def requests_by_id(volume_id: str) -> list[Message]:
    """Every request that names a volume, right but for the id."""
    stage, target = "/kubelet/stage", "/kubelet/target"
    return [
        csi_pb2.DeleteVolumeRequest(volume_id=volume_id),
        csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=volume_id, volume_capabilities=[mounted()]),
        csi_pb2.NodeStageVolumeRequest(
            volume_id=volume_id, staging_target_path=stage, volume_capability=mounted()
        ),
        csi_pb2.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=stage),
        csi_pb2.NodePublishVolumeRequest(
            volume_id=volume_id, staging_target_path=stage, target_path=target, volume_capability=mounted()
        ),
        csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target),
        csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=target),
        waymark_pb2.GetRequest(volume_id=volume_id),
        waymark_pb2.HistoryRequest(volume_id=volume_id),
    ]


def send(served: Served, request: Message) -> object:
    """Send a request to the method that takes it."""
    method = type(request).__name__.removesuffix("Request")
    stubs = (served.controller, served.node, served.records)
    return next(getattr(stub, method) for stub in stubs if hasattr(stub, method))(request)


KINDS = [type(request).__name__ for request in requests_by_id("")]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
class TestRequestsByVolumeId:
    def test_a_handle_is_decoded(self, served: Served, number: int) -> None:
        send(served, requests_by_id(HANDLE)[number])

        assert getattr(served.operations.commands[-1], "handle") == HANDLE_DECODED  # noqa: B009  any command

    def test_no_id_and_too_long_an_id_are_invalid(self, served: Served, number: int) -> None:
        for volume_id, says in (("", "volume_id is missing"), ("a" * 129, "volume_id has 129 bytes")):
            code, text = refusal(send, served, requests_by_id(volume_id)[number])

            assert (code, says in text) == (INVALID, True), text

    def test_an_id_that_does_not_decode_names_no_volume(self, served: Served, number: int) -> None:
        others = {"DeleteVolumeRequest": None, "GetRequest": INVALID, "HistoryRequest": INVALID}
        code = others.get(KINDS[number], grpc.StatusCode.NOT_FOUND)
        for volume_id in WRONG_IDS:
            request = requests_by_id(volume_id)[number]
            if code is None:
                send(served, request)
            else:
                assert refusal(send, served, request)[0] == code


def test_a_validation_of_what_is_not_served_is_an_answer_and_no_error(served: Served) -> None:
    for capability in (
        mounted("btrfs"),
        mounted(mode=Mode.MULTI_NODE_MULTI_WRITER),
        block(Mode.MULTI_NODE_SINGLE_WRITER),
    ):
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=HANDLE, volume_capabilities=[capability]
        )

        answer = served.controller.ValidateVolumeCapabilities(request)

        assert not answer.HasField("confirmed")
        assert "not served" in answer.message or "block volume" in answer.message


def test_a_validation_confirms_what_was_asked(served: Served) -> None:
    request = csi_pb2.ValidateVolumeCapabilitiesRequest(
        volume_id=HANDLE, volume_capabilities=[mounted("ext4")], parameters=LEAST, volume_context={"a": "b"}
    )

    answer = served.controller.ValidateVolumeCapabilities(request)

    assert list(answer.confirmed.volume_capabilities) == [mounted("ext4")]
    assert dict(answer.confirmed.parameters) == LEAST
    assert dict(answer.confirmed.volume_context) == {"a": "b"}
    command = served.operations.commands[-1]
    assert isinstance(command, ValidateVolume)
    assert command.parameters == ClassParameters("prod", "rbd")


def test_a_validation_of_unknown_parameters_is_not_confirmed(served: Served) -> None:
    for changed in ({"parameters": LEAST | {"x": "y"}}, {"mutable_parameters": {"x": "y"}}):
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=HANDLE, volume_capabilities=[mounted()], **changed
        )

        assert not served.controller.ValidateVolumeCapabilities(request).HasField("confirmed")


def test_a_validation_without_capabilities_is_invalid(served: Served) -> None:
    request = csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=HANDLE)

    assert refusal(served.controller.ValidateVolumeCapabilities, request)[0] == INVALID


def test_a_stage_reaches_the_operation_whole(served: Served) -> None:
    request = csi_pb2.NodeStageVolumeRequest(
        volume_id=HANDLE,
        staging_target_path="/kubelet/" + "s" * 200,
        volume_capability=mounted("", ("noatime",), Mode.SINGLE_NODE_READER_ONLY),
        volume_context={"a": "b"},
        publish_context={"c": "d"},
        secrets=SECRETS,
    )

    served.node.NodeStageVolume(request)

    assert served.operations.commands == [
        StageVolume(
            HANDLE,
            HANDLE_DECODED,
            "/kubelet/" + "s" * 200,
            Capability("mount", AccessMode.SINGLE_NODE_READER_ONLY, "", ("noatime",)),
            {"a": "b"},
            {"c": "d"},
            Credentials("kubernetes", KEY),
        )
    ]


def test_a_publish_reaches_the_operation_whole(served: Served) -> None:
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id=HANDLE,
        staging_target_path="/kubelet/stage",
        target_path="/kubelet/target",
        volume_capability=block(),
        readonly=True,
    )

    served.node.NodePublishVolume(request)

    assert served.operations.commands == [
        PublishVolume(
            HANDLE,
            HANDLE_DECODED,
            "/kubelet/stage",
            "/kubelet/target",
            Capability("block", AccessMode.SINGLE_NODE_WRITER),
            readonly=True,
        )
    ]


STAGE = csi_pb2.NodeStageVolumeRequest(
    volume_id=HANDLE, staging_target_path="/kubelet/stage", volume_capability=mounted()
)
PUBLISH = csi_pb2.NodePublishVolumeRequest(
    volume_id=HANDLE, staging_target_path="/kubelet/s", target_path="/kubelet/t", volume_capability=mounted()
)
STATS = csi_pb2.NodeGetVolumeStatsRequest(volume_id=HANDLE, volume_path="/kubelet/t")
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("request_", "field", "value", "code", "says"),
    [
        (STAGE, "staging_target_path", "", INVALID, "staging_target_path is missing"),
        (STAGE, "staging_target_path", "kubelet/stage", INVALID, "absolute path"),
        (STAGE, "staging_target_path", "/a\0b", INVALID, "absolute path without NUL"),
        (STAGE, "staging_target_path", "/" + "a" * 4095, INVALID, "has 4096 bytes; at most 4095"),
        (STAGE, "volume_capability", None, INVALID, "volume_capability is missing"),
        (PUBLISH, "target_path", "", INVALID, "target_path is missing"),
        (PUBLISH, "target_path", "target", INVALID, "absolute path"),
        (PUBLISH, "volume_capability", None, INVALID, "volume_capability is missing"),
        (PUBLISH, "staging_target_path", "", PRECONDITION, "staged before it is published"),
        (STATS, "volume_path", "", INVALID, "volume_path is missing"),
    ],
)
def test_a_node_request_that_is_wrong_is_refused_and_reaches_nothing(
    served: Served, request_: Message, field: str, value: str | None, code: grpc.StatusCode, says: str
) -> None:
    changed = type(request_)()
    changed.CopyFrom(request_)
    changed.ClearField(field)
    if value is not None:
        setattr(changed, field, value)

    found_code, text = refusal(send, served, changed)

    assert (found_code, says in text) == (code, True), text
    assert served.operations.commands == []


def test_a_negative_page_is_invalid(served: Served) -> None:
    assert refusal(served.records.List, waymark_pb2.ListRequest(max_entries=-1))[0] == INVALID
