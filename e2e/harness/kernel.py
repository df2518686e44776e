"""What the kernel holds of a test bed: mounts and loop devices whose paths lie in its folder, krbd maps."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
from dataclasses import dataclass

_ESCAPED = re.compile(r"\\([0-7]{3})")
TOOL_SECONDS = 5.0
_UUID_LENGTH = 36

_asleep: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class MountedAt:
    """One row of the mount table."""

    target: pathlib.Path
    fs_type: str
    source: str
    root: str
    """Path inside the file system: of a bind mount, what was bound."""


def mounts_under(folder: pathlib.Path) -> list[MountedAt]:
    """Mounts at or below `folder`, in the order they were made."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, target = (_unescape(word) for word in left.split(" ")[3:5])
        fs_type, source = right.split(" ")[:2]
        if pathlib.Path(target).is_relative_to(folder):
            found.append(MountedAt(pathlib.Path(target), fs_type, _unescape(source), root))
    return found


def loops_under(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Loop devices (`/dev/loopN`) whose backing file lies in `folder`."""
    found = {}
    for file in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = pathlib.Path(file.read_text().rstrip("\n").removesuffix(" (deleted)"))
        except OSError:  # detached while we looked
            continue
        if backing.is_relative_to(folder):
            found[f"/dev/{file.parent.parent.name}"] = backing
    return found


def rbd_maps() -> dict[str, str]:
    """All images that the kernel's RBD driver has mapped: device, and the UUID in the image's name."""
    found = {}
    for folder in pathlib.Path("/sys/bus/rbd/devices").glob("*"):
        with contextlib.suppress(OSError):  # unmapped while we looked
            found[f"/dev/rbd{folder.name}"] = (folder / "name").read_text().strip()[-_UUID_LENGTH:]
    return found


def unmap_rbd(device: str) -> bool:
    """Unmap an image; False if that failed or did not end in time."""
    return _tool("rbd", "device", "unmap", "--options", "noudev", device)


def unmount(target: pathlib.Path, *, lazily: bool = False) -> bool:
    """Unmount; False if that failed or did not end in time."""
    return _tool("umount", *(["--lazy"] if lazily else []), str(target))


def detach(loop: str) -> bool:
    """Detach a loop device; False if that failed or did not end in time."""
    return _tool("losetup", "--detach", loop)


def _tool(*command: str) -> bool:
    """Run a tool without ever waiting for one that sleeps in the kernel: not even SIGKILL ends that."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        return process.wait(TOOL_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        _asleep.append(process)
        return False


def _unescape(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)
