"""The mapper `krbd`: the kernel's own RBD driver.

What is mapped is read from sysfs; `/dev` paths are never remembered.  Each volume has a file
`<run>/krbd/<volume>.json` that says which image it is: written before the map, removed after the unmap.  It
keeps a map that an admin made by hand apart from ours, and so does the option `noshare`, which every map here
has: with it each map is a client of its own, so that shutting one out of the cluster leaves the node's other
volumes alone.
"""

from __future__ import annotations

import contextlib
import os
import pathlib

from csi.node.krbd_options import krbd_options
from csi.node.map_file import MapFile, MappedImage
from csi.node.ports import Credentials, Device, MapTarget
from csi.node.run import Completed, Runner
from csi.node.sysfs_rbd import KernelMap, SysfsRbd
from csi.rbd_features import feature_names
from executor.errors import (
    DeniedError,
    InUseError,
    InvalidError,
    OperationError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)

_MODPROBE_SECONDS = 10.0

_CODES = {1: "EPERM", 2: "ENOENT", 13: "EACCES", 16: "EBUSY", 22: "EINVAL"}
"""The exit codes of `rbd` that are told apart: it ends with the number of the error."""


class KrbdMapper:
    """Maps images by `rbd map`, the key handed over in memory."""

    name = "krbd"

    def __init__(
        self,
        run_dir: pathlib.Path,
        runner: Runner,
        *,
        map_seconds: float = 60.0,
        kernel: SysfsRbd | None = None,
    ) -> None:
        """Keep what belongs to a map below `run_dir`, on a tmpfs of the host.

        `map_seconds` is for one map or unmap: mapping waits until a dead client's lock on the image is over.
        """
        self._maps = run_dir.resolve() / "krbd"
        self._runner = runner
        self._map_seconds = map_seconds
        self._kernel = kernel or SysfsRbd()

    def find(self, volume: str) -> Device | None:
        """The volume's device, if the kernel has it."""
        kernel_map = self._find(volume)
        if kernel_map is None:
            return None
        return Device(
            kernel_map.device, volume, kernel_map.pool_id, kernel_map.image_id, kernel_map.read_only
        )

    def map(self, target: MapTarget, credentials: Credentials) -> Device:
        """Map the image, or find it mapped by a plugin that did not live to tell."""
        options = krbd_options(target.options, target.monitors, read_only=target.read_only)
        self._refuse_kernel(target)
        file, wanted = self._file(target.volume), _wanted(target)
        found = self._find(target.volume)
        if found is None:
            file.write(wanted)
            self._map(target, credentials, options)
            found = self._find(target.volume)
            if found is None:
                raise UnavailableError(
                    f"image {target.image_name} of {target.place} was mapped and is not there any more; "
                    "look at the node's kernel log (dmesg)"
                )
        elif file.read() != wanted:
            raise PreconditionError(
                f"volume {target.volume} is mapped at {found.device} as {_told(file.read())}, not as "
                f"{_told(wanted)}; unstage it first"
            )
        if found.size_bytes < target.size_bytes:  # an old map that has not noticed yet
            found = self._refreshed(found, target.volume) or found
        if found.size_bytes < target.size_bytes:
            self.unmap(target.volume)
            raise PreconditionError(
                f"image {target.image_name} of {target.place} has {found.size_bytes} bytes and volume "
                f"{target.volume} {target.size_bytes}; it is not the image of the record"
            )
        return Device(found.device, target.volume, found.pool_id, found.image_id, found.read_only)

    def expand(self, volume: str, size_bytes: int) -> None:
        """The kernel notices by itself; it is asked to look where it has not yet."""
        found = self._find(volume)
        if found is not None and found.size_bytes < size_bytes:
            found = self._refreshed(found, volume)
        if found is None or found.size_bytes < size_bytes:
            has = (
                "not mapped on this node" if found is None else f"{found.size_bytes} bytes at {found.device}"
            )
            raise UnavailableError(f"volume {volume} is {has}, and {size_bytes} bytes are wanted; retry")

    def is_clear(self, volume: str) -> bool:
        """Whether no map of the volume was ever begun here: its file is made before all else."""
        return not self._file(volume).exists()

    def watching(self, volume: str) -> frozenset[str]:
        """The client address of the volume's map; each map has its own."""
        found = self._find(volume)
        return frozenset() if found is None else frozenset({found.client_address})

    def unmap(self, volume: str) -> None:
        """Take the volume's device away, its identity looked at just before."""
        file = self._file(volume)
        found = self._find(volume)
        if found is not None:
            options = [] if self._kernel.has_udev() else ["--options", "noudev"]
            argv = ["rbd", "--conf", os.devnull, "device", "unmap", *options, found.device]
            done = self._runner.run(argv, timeout=self._map_seconds, touches_device=True)
            if _CODES.get(done.code) == "EBUSY":
                raise InUseError(
                    f"{found.device} is mounted or kept open, so volume {volume} is not unmapped; "
                    f"look for its users with `fuser -vm {found.device}` and try again"
                )
            if self._find(volume) is not None:
                raise UnavailableError(f"{found.device} of volume {volume} is not unmapped: {done.words}")
        file.remove()

    def volumes(self) -> tuple[str, ...]:
        """Volumes that are mapped here, or whose map was begun."""
        return MapFile.volumes(self._maps)

    def _find(self, volume: str) -> KernelMap | None:
        image = self._file(volume).read()
        if image is None:
            return None
        found = [each for each in self._kernel.maps() if each.is_of(image)]
        if len(found) > 1:
            devices = ", ".join(each.device for each in found)
            raise PreconditionError(
                f"volume {volume} is mapped more than once ({devices}); unmap what was mapped by hand, then "
                "try again"
            )
        return found[0] if found else None

    def _refreshed(self, found: KernelMap, volume: str) -> KernelMap | None:
        with contextlib.suppress(OSError):  # gone by now, or shut out: the second look tells
            self._kernel.refresh(found)
        return self._find(volume)

    def _file(self, volume: str) -> MapFile:
        return MapFile(self._maps, volume)

    def _refuse_kernel(self, target: MapTarget) -> None:
        """Raise for a kernel that cannot map the image."""
        if not self._kernel.is_loaded():
            self._runner.run(["modprobe", "rbd"], timeout=_MODPROBE_SECONDS)
        if not self._kernel.is_loaded():
            raise PreconditionError(
                "this node's kernel has no RBD driver: install the kernel module rbd and load it with "
                "`modprobe rbd`, or give the StorageClass another mounter"
            )
        missing = target.features & ~self._kernel.supported_features()
        if missing:
            raise PreconditionError(
                f"this node's kernel cannot map image {target.image_name} of {target.place}: it does not "
                f"know the image's features {', '.join(feature_names(missing))}; disable them with `rbd "
                "feature disable`, or use a newer kernel or another mounter"
            )

    def _map(self, target: MapTarget, credentials: Credentials, options: str) -> None:
        what = f"image {target.image_name} of {target.place} could not be mapped as client.{credentials.user}"
        key = os.memfd_create("key", 0)  # no file that others could read, and nothing on the command line
        try:
            os.write(key, credentials.key.encode())
            namespace = ["--namespace", target.place.namespace] if target.place.namespace else []
            argv = [
                *("rbd", "--conf", os.devnull, "--mon-host", ",".join(target.monitors)),
                *("--id", credentials.user, "--keyfile", f"/proc/self/fd/{key}"),
                *("device", "map", "--pool", target.place.pool, *namespace, "--image", target.image_name),
                *("--options", options),
            ]
            done = self._runner.run(argv, timeout=self._map_seconds, touches_device=True, pass_fds=(key,))
        except UnavailableError as error:
            raise UnavailableError(f"{what}: {error}") from None
        finally:
            os.close(key)
        if done.code:
            raise _refused(what, done)


def _wanted(target: MapTarget) -> MappedImage:
    return MappedImage(target.fsid, target.pool_id, target.image_id, target.read_only)


def _told(image: MappedImage | None) -> str:
    if image is None:
        return "another image"
    return f"image {image.image_id} of pool {image.pool_id}{' read-only' if image.read_only else ''}"


def _refused(what: str, done: Completed) -> OperationError:
    match _CODES.get(done.code):
        case "EPERM":
            return DeniedError(f"{what}: the cluster does not permit it; check the user's caps")
        case "EACCES":
            return UnauthenticatedError(f"{what}: the cluster refuses user or key; check the Secret")
        case "EINVAL" if "map option" in done.stderr:
            return InvalidError(f"{what}: {_last_words(done)}; correct mapOptions")
        case "ENOENT" if "ms_mode" not in done.stderr:
            return PreconditionError(f"{what}: it is not there; look for it with rbd ls and in rbd trash ls")
        case _:
            return UnavailableError(f"{what}: {_last_words(done)}")


def _last_words(done: Completed) -> str:
    """What `rbd` itself says, without the library's log lines."""
    said = [line.removeprefix("rbd: ") for line in done.stderr.splitlines() if line.startswith("rbd: ")]
    return "; ".join(said)[:400] or done.words
