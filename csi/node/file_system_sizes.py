"""Whether a file system fills its device, read from what its own tools tell.

File systems are made of groups of blocks.  The rest of a device that is too small for a group of its own
stays unused, whether the file system is made or grown: one that leaves only this much fills its device.
"""

from __future__ import annotations

import itertools
import re

_EXT4_LINE = re.compile(r"(?m)^(?P<name>[A-Z][\w ]+): +(?P<value>\d+)$")
_EXT4_LEAST_DATA_BLOCKS = 50
"""What a last group must have beside its own tables, else it is left out."""
_EXT4_OLD_DESCRIPTOR_BYTES = 32

_XFS_GROUPS = re.compile(r"\bagsize=(?P<blocks>\d+) ")
_XFS_DATA = re.compile(r"(?m)^data .*bsize=(?P<size>\d+) +blocks=(?P<blocks>\d+),")
_XFS_LEAST_GROUP_BYTES = 16 << 20
"""mkfs.xfs makes no smaller group, and a growth that would is not worth one."""


def ext4_fills(told: str, device_bytes: int) -> bool:
    """From the output of `dumpe2fs -h`.  Raises ValueError when it does not tell the size."""
    fields = {found["name"]: int(found["value"]) for found in _EXT4_LINE.finditer(told)}
    try:
        block_bytes, blocks = fields["Block size"], fields["Block count"]
        in_group, tables = fields["Blocks per group"], fields["Inode blocks per group"]
        first = fields["First block"]
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from None
    device_blocks = device_bytes // block_bytes
    full_groups, rest = divmod(device_blocks - first, in_group)
    needed = 2 + tables + _EXT4_LEAST_DATA_BLOCKS
    if _has_backup(full_groups):
        descriptor_bytes = fields.get("Group descriptor size", _EXT4_OLD_DESCRIPTOR_BYTES)
        descriptors = -(-(full_groups + 1) * descriptor_bytes // block_bytes)
        needed += 1 + descriptors + fields.get("Reserved GDT blocks", 0)
    if full_groups and rest < needed:
        device_blocks -= rest
    return blocks >= device_blocks


def xfs_fills(told: str, device_bytes: int) -> bool:
    """From the output of `xfs_info`.  Raises ValueError when it does not tell the size."""
    data, groups = _XFS_DATA.search(told), _XFS_GROUPS.search(told)
    if data is None or groups is None:
        raise ValueError("no data section")
    block_bytes, blocks = int(data["size"]), int(data["blocks"])
    rest = device_bytes // block_bytes - blocks
    has_whole_groups = blocks % int(groups["blocks"]) == 0
    return rest <= 0 or (has_whole_groups and rest * block_bytes < _XFS_LEAST_GROUP_BYTES)


def _has_backup(group: int) -> bool:
    """Whether an ext4 group begins with a copy of the superblock: the first two, and powers of 3, 5 and 7."""
    if group <= 1:
        return True
    powers = ((base**exponent for exponent in itertools.count(1)) for base in (3, 5, 7))
    return any(group in itertools.takewhile(lambda power: power <= group, each) for each in powers)
