"""Mounts by util-linux, judged by the kernel's mount table.

Each method may be repeated after it was interrupted anywhere: it looks at the table first and does what is
missing. A commandline tool mounts and unmounts, not the plugin itself, because a thread inside mount(2) of
a device that does not answer cannot be ended and a process can.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
from collections.abc import Sequence

from csi.node import mount_table
from csi.node.lock import program_name
from csi.node.mount_flags import with_defaults
from csi.node.ports import FileSystemUsage, Mount
from csi.node.run import Runner
from executor.errors import InUseError, InvalidError, PreconditionError, UnavailableError

_MOUNT_SECONDS = 60.0
"""A mount may have to replay a journal, an unmount to write out what is cached."""

_STACK_LIMIT = 16
"""More mounts than this on top of each other at one path are somebody else's loop, not ours to unwind."""

_KEPT_FLAGS = frozenset({"nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime"})
"""Per-mount flags that a remount drops unless it is told them again."""

_SECTOR_BYTES = 512


class HostMounts:
    """The mounts of this process's mount namespace."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def at(self, target: str) -> Mount | None:
        """The topmost mount exactly at this path."""
        return mount_table.at(target)

    def exists(self, target: str) -> bool:
        """Whether anything is at this path, a mount that answers no more included."""
        try:
            pathlib.Path(target).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def of_device(self, path: str) -> tuple[Mount, ...]:
        """Every mount of this device and every bind of its node."""
        return mount_table.of_device(path)

    def mount(self, device: str, target: str, fs_type: str, flags: Sequence[str]) -> None:
        """Mount a file system on a folder, which is made if it is not there."""
        options = with_defaults(fs_type, flags)
        number = mount_table.device_number(device)
        if number is None:
            raise PreconditionError(f"{device} is no block device of this node; stage the volume again")
        if self._is_there(target, number, "/", fs_type):
            return
        _make_folder(target)
        argv = ["mount", "-i", "-t", fs_type, *(["-o", ",".join(options)] if options else [])]
        done = self._runner.run([*argv, "--", device, target], timeout=_MOUNT_SECONDS, touches_device=True)
        if done.code == 0:
            return
        flags_told = ",".join(flags)
        if flags and "wrong fs type, bad option" in done.words:
            raise InvalidError(
                f"{device} cannot be mounted as {fs_type} with the flags {flags_told}: "
                f"the kernel refuses one, or the file system is damaged; "
                f"correct mountOptions, or look at it with fsck -n {device}"
            )
        if any(words in done.words for words in ("Input/output error", "can't read superblock")):
            raise UnavailableError(f"{device} does not answer a mount: {done.words}")
        raise PreconditionError(
            f"{device} cannot be mounted as {fs_type} at {target}: {done.words}; run fsck -n {device}"
        )

    def bind(self, source: str, target: str, *, read_only: bool, is_device: bool) -> None:
        """Bind a mounted folder, or a device node; a bind that lacks its read-only flag gets it."""
        number, root, fs_type = self._source(source, is_device=is_device)
        if not self._is_there(target, number, root, fs_type):
            (_make_file if is_device else _make_folder)(target)
            self._bind(["--bind", "--", source, target], source, target)
        if not read_only:
            return
        mount = self.at(target)
        if mount is not None and "ro" not in mount.options:
            kept = sorted(mount.options & _KEPT_FLAGS)
            self._bind(["-o", ",".join(["remount", "bind", "ro", *kept]), "--", target], source, target)

    def unmount(self, target: str) -> None:
        """Unmount all that is at this path, then remove the empty folder or file."""
        for _ in range(_STACK_LIMIT):
            if self.at(target) is None:
                break
            _refuse_symlink(target)
            done = self._runner.run(
                ["umount", "-i", "-c", "--", target], timeout=_MOUNT_SECONDS, touches_device=True
            )
            if done.code and self.at(target) is not None:
                if "busy" in done.words:
                    raise InUseError(f"{target} is in use by {_users(target)}; end that and repeat the call")
                raise UnavailableError(f"{target} cannot be unmounted: {done.words}")
        else:
            raise PreconditionError(
                f"{target} carries more than {_STACK_LIMIT} mounts; unmount them by hand and repeat the call"
            )
        _remove(target)

    def usage(self, path: str) -> FileSystemUsage:
        """Room on the file system at this path."""
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise UnavailableError(f"{path} does not tell its usage: {error.strerror}") from None
        return FileSystemUsage(
            total_bytes=found.f_blocks * found.f_frsize,
            used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
            available_bytes=found.f_bavail * found.f_frsize,
            total_inodes=found.f_files,
            used_inodes=found.f_files - found.f_ffree,
            available_inodes=found.f_favail,
        )

    def device_size(self, path: str) -> int:
        """The device's size as the kernel has it; the device itself is not opened."""
        number = mount_table.device_number(path)
        if number is None:
            raise PreconditionError(f"{path} is no block device of this node")
        sectors = pathlib.Path(f"/sys/dev/block/{number}/size").read_text(encoding="ascii")
        return int(sectors) * _SECTOR_BYTES

    def _source(self, source: str, *, is_device: bool) -> tuple[str, str, str | None]:
        """Number, root and type by which the table would show a bind of `source`."""
        if is_device:
            number = mount_table.device_number(source)
            if number is None:
                raise PreconditionError(f"{source} is no block device of this node; stage the volume again")
            return number, "", None
        mount = self.at(source)
        if mount is None:
            raise PreconditionError(f"{source} is not mounted, and a plain folder is never published")
        return mount.device_number, mount.root, mount.fs_type

    def _is_there(self, target: str, number: str, root: str, fs_type: str | None) -> bool:
        """Whether this mount is at the target.  Raises PreconditionError when another one is.

        A device node (no `fs_type`) is told by its number alone: it may be bound from any of its names.
        """
        mount = self.at(target)
        if mount is None:
            return False
        if mount.device_number == number and (
            mount.fs_type in {"devtmpfs", "tmpfs"}
            if fs_type is None
            else (mount.root, mount.fs_type) == (root, fs_type)
        ):
            return True
        raise PreconditionError(
            f"{target} already carries a mount of {mount.source} ({mount.fs_type}); unmount that first"
        )

    def _bind(self, arguments: Sequence[str], source: str, target: str) -> None:
        done = self._runner.run(["mount", "-i", *arguments], timeout=_MOUNT_SECONDS, touches_device=True)
        if done.code:
            raise UnavailableError(f"{source} cannot be bound to {target}: {done.words}")


def _make_folder(target: str) -> None:
    _refuse_symlink(target)
    path = pathlib.Path(target)
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise PreconditionError(f"{target} is not a folder; move what is there away") from None
    except OSError as error:
        raise UnavailableError(f"the folder {target} cannot be made: {error.strerror}") from None


def _make_file(target: str) -> None:
    _refuse_symlink(target)
    path = pathlib.Path(target)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
    except IsADirectoryError:
        raise PreconditionError(
            f"{target} is a folder, and a block device needs a file there; remove it"
        ) from None
    except OSError as error:
        raise UnavailableError(f"the file {target} cannot be made: {error.strerror}") from None


def _refuse_symlink(target: str) -> None:
    if pathlib.Path(target).is_symlink():
        raise InvalidError(f"{target} is a symlink, and symlinks are not followed; remove it")


def _remove(target: str) -> None:
    """Remove an empty folder or an empty plain file; absent is success."""
    path = pathlib.Path(target)
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            path.rmdir()
        elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
            path.unlink()
        else:
            raise PreconditionError(f"{target} is neither an empty folder nor an empty file; move it away")
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            inside = next(path.iterdir(), path).name
            raise PreconditionError(
                f"{target} is not mounted but holds {inside!r}; move what is in it away and repeat the call"
            ) from None
        raise UnavailableError(f"{target} cannot be removed: {error.strerror}") from None


def _users(target: str) -> str:
    """Who works below a mount, as far as this process may see: `name (process 42), ...`."""
    above = f"{os.path.realpath(target)}/"
    found: list[str] = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            links = [entry / "cwd", entry / "root", *(entry / "fd").iterdir()]
            if any(f"{link.readlink()}/".startswith(above) for link in links):
                found.append(f"{program_name(int(entry.name))} (process {entry.name})")
    return ", ".join(found) or "a process that cannot be seen from here"
