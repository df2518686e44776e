"""What is said of a file system's size, against what the tools themselves make of devices of many sizes."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from csi.node.file_system_sizes import ext4_fills, xfs_fills
from csi.node.mkfs_options import mkfs_options

MIB = 1 << 20

GROWTHS = [(64, 65), (256, 300), (1024, 1025), (1025, 1026), (1100, 1153), (1152, 1158), (2049, 4097)]
"""Before and after, in MiB: with last groups of every kind, and one that none is made of."""


def told(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def ext4_blocks(image: pathlib.Path) -> int:
    found = re.search(r"(?m)^Block count: +(\d+)$", told("dumpe2fs", "-h", str(image)))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(("before", "after"), GROWTHS)
@pytest.mark.parametrize("options", ["", "-b 4096 -O ^64bit", "-b 1024", "-O ^resize_inode"])
def test_an_ext4_fills_its_device_exactly_where_resize2fs_finds_nothing_to_add(
    tmp_path: pathlib.Path, before: int, after: int, options: str
) -> None:
    image = tmp_path / "image"
    image.touch()

    def resized(mib: int) -> tuple[bool, bool]:
        with image.open("r+b") as file:
            file.truncate(mib * MIB)
        said, blocks = ext4_fills(told("dumpe2fs", "-h", str(image)), mib * MIB), ext4_blocks(image)
        told("e2fsck", "-f", "-p", str(image))
        told("resize2fs", str(image))
        return said, ext4_blocks(image) == blocks

    with image.open("r+b") as file:
        file.truncate(before * MIB)
    told("mkfs.ext4", "-q", *mkfs_options("ext4", options), str(image))
    assert resized(before) == (True, True)
    said, found = resized(after)
    assert said == found
    assert resized(after) == (True, True)


@pytest.mark.parametrize("mib", [1024, 1025, 1040, 3072])
@pytest.mark.parametrize("options", ["", "-d su=64k,sw=64", "-d agcount=3"])
def test_a_new_xfs_fills_its_device_and_a_larger_device_it_does_not(
    tmp_path: pathlib.Path, mib: int, options: str
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    told("mkfs.xfs", "-q", *mkfs_options("xfs", options), str(image))
    made = told("xfs_info", str(image))
    assert xfs_fills(made, mib * MIB)
    assert not xfs_fills(made, (mib + 64) * MIB)


@pytest.mark.parametrize("fills", [ext4_fills, xfs_fills])
def test_a_tool_that_tells_no_size_is_not_believed(fills: object) -> None:
    assert callable(fills)
    with pytest.raises(ValueError, match="no "):
        fills("what a newer tool might say", MIB)
