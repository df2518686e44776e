"""Volume handles."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi import handles
from csi.handles import HandleError, VolumeHandle

UUID = "7c1f53a0-3a3b-4a0e-8f0e-5e6f1f2a9d11"

cluster_ids = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), fullmatch=True)
every_handle = st.builds(
    VolumeHandle,
    cluster_ids,
    st.integers(min_value=0, max_value=2**63 - 1),
    st.uuids().map(str),
)


def test_a_handle_of_ceph_csi_is_read_and_written_letter_for_letter() -> None:
    volume_id = f"0001-0009-rook-ceph-0000000000000002-{UUID}"

    handle = handles.decode(volume_id)

    assert handle == VolumeHandle("rook-ceph", 2, UUID)
    assert str(handle) == volume_id


@given(every_handle)
def test_every_handle_comes_back_and_fits_into_an_id_of_csi(handle: VolumeHandle) -> None:
    volume_id = handles.encode(handle)

    assert handles.decode(volume_id) == handle
    assert len(volume_id.encode()) <= handles.MAX_BYTES


@given(st.text() | st.from_regex(re.compile(r"0001-[0-9a-fA-F]{4}-.*"), fullmatch=True))
def test_what_decodes_is_what_encode_wrote_and_all_else_is_refused(text: str) -> None:
    try:
        handle = handles.decode(text)
    except HandleError:
        return
    assert handles.encode(handle) == text


@pytest.mark.parametrize(
    "volume_id",
    [
        "",
        "volume-1",
        UUID,
        f"0002-0004-prod-0000000000000002-{UUID}",
        f"0001-0005-prod-0000000000000002-{UUID}",
        f"0001-0003-prod-0000000000000002-{UUID}",
        f"0001-0004-prod-000000000000000A-{UUID}",
        f"0001-0004-prod-ffffffffffffffff-{UUID}",
        f"0001-0004-prod-0000000000000002-{UUID.upper()}",
        f"0001-0004-prod-0000000000000002-{UUID}\n",
        f"0001-0004-prod-0000000000000002-{UUID}x",
        f"0001-0004-../x-0000000000000002-{UUID}",
        f"0001-0000--0000000000000002-{UUID}",
        f"0001-ffff-prod-0000000000000002-{UUID}",
        f"0001-0004-prod-0000000000000002-{{{UUID}}}",
    ],
)
def test_anything_else_is_no_handle_and_the_text_says_which_form_one_has(volume_id: str) -> None:
    with pytest.raises(HandleError, match=r"0001-<length>-<clusterID>-<pool number>-<UUID>"):
        handles.decode(volume_id)


@pytest.mark.parametrize(
    ("cluster_id", "pool_id", "uuid"),
    [
        ("", 1, UUID),
        ("a" * 65, 1, UUID),
        ("a/b", 1, UUID),
        ("c", -1, UUID),
        ("c", 2**63, UUID),
        ("c", 1, "x"),
    ],
)
def test_a_handle_that_no_id_can_carry_is_not_made(cluster_id: str, pool_id: int, uuid: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        VolumeHandle(cluster_id, pool_id, uuid)
