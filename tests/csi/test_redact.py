"""Secrets are taken out of requests, whichever field they are in."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from csi import redact
from proto import csi_pb2

SECRET, OPEN = "s3cr3t-value", "open-value"


def messages(descriptors: list[Descriptor]) -> Iterator[Descriptor]:
    for descriptor in descriptors:
        if not descriptor.GetOptions().map_entry:
            yield descriptor
        yield from messages(list(descriptor.nested_types))


EVERY = list(messages(list(csi_pb2.DESCRIPTOR.message_types_by_name.values())))


def is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[csi_pb2.csi_secret])


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def filled(descriptor: Descriptor, depth: int = 6) -> Message:
    """A message with every field set: secret ones to SECRET, others to OPEN."""
    message: Message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        text = SECRET if is_secret(field) else OPEN
        part = getattr(message, field.name)
        if is_map(field):
            part["key"] = text
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth and field.message_type is not None:
                inner = filled(field.message_type, depth - 1)
                part.add().CopyFrom(inner) if field.is_repeated else part.CopyFrom(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            part.append(text) if field.is_repeated else setattr(message, field.name, text)
    return message


def has_secret(descriptor: Descriptor, depth: int = 6) -> bool:
    return any(
        is_secret(field)
        or (depth > 0 and field.message_type is not None and has_secret(field.message_type, depth - 1))
        for field in descriptor.fields
    )


@pytest.mark.parametrize("descriptor", EVERY, ids=lambda descriptor: descriptor.full_name)
def test_no_message_shows_a_secret_and_each_tells_which_it_holds(descriptor: Descriptor) -> None:
    message = filled(descriptor)

    shown = json.dumps(redact.loggable(message))

    assert SECRET not in shown
    assert redact.secret_values(message) == (frozenset({SECRET}) if has_secret(descriptor) else frozenset())


def test_csi_has_messages_with_secrets_at_all() -> None:
    assert len([descriptor for descriptor in EVERY if has_secret(descriptor)]) > 10


def test_all_else_is_shown() -> None:
    request = csi_pb2.CreateVolumeRequest(
        name="pvc-1",
        parameters={"pool": "rbd"},
        secrets={"userKey": SECRET},
        capacity_range=csi_pb2.CapacityRange(required_bytes=5),
        volume_capabilities=[
            csi_pb2.VolumeCapability(mount=csi_pb2.VolumeCapability.MountVolume(mount_flags=["noatime"]))
        ],
    )

    assert redact.loggable(request) == {
        "name": "pvc-1",
        "parameters": {"pool": "rbd"},
        "secrets": {"userKey": "***"},
        "capacity_range": {"required_bytes": 5},
        "volume_capabilities": [{"mount": {"mount_flags": ["noatime"]}}],
    }


@given(st.dictionaries(st.text(max_size=5), st.text(min_size=4, alphabet="abcd"), max_size=5), st.text())
def test_whatever_a_secret_is_no_text_keeps_it(secrets: dict[str, str], text: str) -> None:
    values = redact.secret_values(csi_pb2.DeleteVolumeRequest(secrets=secrets))

    scrubbed = redact.scrub(text + " ".join(secrets.values()), values)

    assert not [value for value in secrets.values() if value in scrubbed]


def test_the_name_of_a_user_stays_in_texts() -> None:
    request = csi_pb2.DeleteVolumeRequest(secrets={"userID": "waymark", "userKey": SECRET})

    scrubbed = redact.scrub(
        f"client.waymark at cluster waymark-1 with {SECRET}", redact.secret_values(request)
    )

    assert scrubbed == "client.waymark at cluster waymark-1 with ***"
