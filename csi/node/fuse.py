"""The mapper `fuse`, for hosts whose kernel has neither krbd nor nbd: qemu-storage-daemon and a loop device.

One daemon an image shows it as a file (a FUSE export), and a loop device makes that file a block device.
The daemon is no child of the plugin and outlives it.  Each volume has a folder `<run>/maps/<volume>`:

    identity.json   which image this is; written before the daemon starts, removed last
    export          the plain file that the daemon mounts its export on
    pid             the daemon's own, from the moment it serves

Whether the volume is mapped is read from the kernel: the daemon's command line, the mount table, the loop
device's backing file.  The image's key reaches the daemon through a pipe.
"""

from __future__ import annotations

import os
import pathlib

from csi.node import daemons
from csi.node.loops import Loops
from csi.node.map_folder import STORAGE_DAEMON, MapFolder, MapIdentity
from csi.node.mounts import HostMounts
from csi.node.ports import Credentials, Device, MapTarget
from csi.node.run import Completed, Runner
from csi.node.storage_daemon import storage_daemon_arguments
from executor.errors import (
    DeniedError,
    InvalidError,
    OperationError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)

_UNMOUNT_SECONDS = 10.0

_KEY_BYTES = 1024
"""More than any Ceph key has, and less than a pipe takes without a reader."""


class FuseMapper:
    """Maps images below `<run>/maps`."""

    name = "fuse"

    def __init__(
        self,
        run_dir: pathlib.Path,
        runner: Runner,
        *,
        map_seconds: float = 30.0,
        term_seconds: float = 10.0,
    ) -> None:
        """Map below `run_dir`, on a tmpfs of the host.

        A daemon must serve within `map_seconds`, and end within `term_seconds` of being asked to before it
        is killed.
        """
        self._map_seconds = map_seconds
        self._term_seconds = term_seconds
        self._maps = run_dir.resolve() / "maps"
        self._runner = runner
        self._loops = Loops(runner)

    def find(self, volume: str) -> Device | None:
        """The volume's device when daemon, export and loop device are all there."""
        folder = self._folder(volume)
        loops = self._loops.backed_by(folder.export)
        if not loops:
            return None
        identity = folder.identity()
        daemon = folder.daemon()
        if daemon is None or not folder.is_mounted():
            return None
        if identity is None or not folder.shows(daemon, identity):
            raise PreconditionError(
                f"{loops[0]} shows an image of volume {volume}, but {folder.path} does not say which; "
                "unmount it and unstage the volume"
            )
        return Device(loops[0], volume, identity.pool_id, identity.image_id, identity.read_only)

    def map(self, target: MapTarget, credentials: Credentials) -> Device:
        """Map the image, completing a daemon without a loop device and replacing what a dead daemon left."""
        if target.options:
            raise InvalidError(
                f"mapOptions {','.join(target.options)}: the mapper fuse takes none; remove them"
            )
        folder = self._folder(target.volume)
        wanted = MapIdentity(
            target.pool_id,
            target.image_id,
            target.place.pool,
            target.place.namespace,
            target.image_name,
            target.read_only,
        )
        found = self.find(target.volume)
        if found is not None:
            self._refuse_other(found, target)
            return found
        daemon = folder.daemon()
        if daemon is None or folder.identity() != wanted or not folder.is_mounted():
            self.unmap(target.volume)
            folder.prepare(wanted)
            self._start(folder, target, credentials)
        device = self._loops.attach(folder.export, read_only=target.read_only)
        size = self._size(device)
        if size < target.size_bytes:
            self.unmap(target.volume)
            raise PreconditionError(
                f"image {target.image_name} of {target.place} has {size} bytes and volume {target.volume} "
                f"{target.size_bytes}; it is not the image of the record"
            )
        return Device(device, target.volume, target.pool_id, target.image_id, target.read_only)

    def expand(self, volume: str, size_bytes: int) -> None:
        """Lengthen the export, which makes the daemon look at the image, then make the loop device look.

        The daemon resizes the image to what it is told, larger or smaller.  So the caller asks the cluster
        just before how large the image is; and where the device shows that much already, nothing is done.
        """
        folder, device = self._folder(volume), self.find(volume)
        if device is None:
            raise UnavailableError(f"volume {volume} is not mapped on this node; stage it again")
        if self._size(device.path) >= size_bytes:
            return
        for argv in (
            ["truncate", f"--size={size_bytes}", "--", str(folder.export)],
            ["losetup", "--set-capacity", device.path],
        ):
            done = self._runner.run(argv, timeout=self._map_seconds, touches_device=True)
            if done.code:
                raise UnavailableError(f"{device.path} of volume {volume} does not grow: {done.words}; retry")

    def is_clear(self, volume: str) -> bool:
        """Whether no folder of the volume is here: it is made before all else and removed last."""
        return not self._folder(volume).path.exists()

    def watching(self, volume: str) -> frozenset[str] | None:
        """A daemon does not tell its address."""
        return frozenset() if self.is_clear(volume) else None

    def unmap(self, volume: str) -> None:
        """Take away loop device, daemon and export, in this order, then the folder."""
        folder = self._folder(volume)
        # The device first: as long as it is mounted, detaching is refused and the daemon goes on serving.
        for device in self._loops.backed_by(folder.export):
            self._loops.detach(device, folder.export)
        self._clear(folder)

    def volumes(self) -> tuple[str, ...]:
        """Volumes that have a folder here: mapped, half-mapped, or left by a reboot."""
        if not self._maps.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._maps.iterdir()))

    def _clear(self, folder: MapFolder, *, kill: bool = False) -> None:
        """End the daemon and remove what belongs to it.

        `kill` one that never served and so has nothing to write.
        """
        patience = 0.0 if kill else self._term_seconds
        for daemon in tuple(daemons.processes(folder.is_daemon)):
            daemons.end(daemon, folder.is_daemon, f"{STORAGE_DAEMON} of {folder.path}", term_seconds=patience)
        if folder.is_mounted():
            self._unmount(folder)
        folder.remove()

    def _size(self, device: str) -> int:
        return HostMounts(self._runner).device_size(device)

    def _folder(self, volume: str) -> MapFolder:
        if not volume or "/" in volume or volume.startswith("."):
            raise ValueError(f"{volume!r} is no volume's UUID")
        return MapFolder(self._maps / volume)

    def _refuse_other(self, found: Device, target: MapTarget) -> None:
        def told(image_id: str, pool_id: int, read_only: bool) -> str:
            return f"image {image_id} of pool {pool_id}{' read-only' if read_only else ''}"

        has = told(found.image_id, found.pool_id, found.read_only)
        wants = told(target.image_id, target.pool_id, target.read_only)
        if has != wants:
            raise PreconditionError(
                f"volume {target.volume} is mapped at {found.path} as {has}, not as {wants}; unstage it first"
            )

    def _start(self, folder: MapFolder, target: MapTarget, credentials: Credentials) -> None:
        what = f"image {target.image_name} of {target.place} could not be mapped as client.{credentials.user}"
        key = credentials.key.encode()
        if len(key) > _KEY_BYTES:
            raise UnauthenticatedError(f"{what}: a Ceph key is shorter than the {len(key)} bytes given")
        reader, writer = os.pipe()
        try:
            try:
                os.write(writer, key)
            finally:
                os.close(writer)
            argv = storage_daemon_arguments(folder, target, credentials.user, reader)
            done = self._runner.start_daemon(argv, timeout=self._map_seconds, pass_fds=(reader,))
        except UnavailableError as error:
            self._clear(folder, kill=True)
            raise UnavailableError(f"{what}: {error}") from None
        finally:
            os.close(reader)
        if done.code:
            self._clear(folder, kill=True)
            raise _refused(what, done)

    def _unmount(self, folder: MapFolder) -> None:
        """Unmount the export of a daemon that is gone; its file answers nothing any more."""
        argv = ["umount", "-i", "-c", "-l", "--", str(folder.export)]
        done = self._runner.run(argv, timeout=_UNMOUNT_SECONDS)
        if folder.is_mounted():
            raise UnavailableError(f"{folder.export} cannot be unmounted: {done.words}")


def _refused(what: str, done: Completed) -> OperationError:
    # The daemon repeats its whole argument before it says what is wrong with it.
    said = " ".join(done.stderr.rpartition("}: ")[2].split()) or done.words
    if "Operation not permitted" in said or "Permission denied" in said:
        return DeniedError(f"{what}: the cluster does not permit it; check the user's key and caps")
    if "No such file or directory" in said:
        return PreconditionError(f"{what}: it is not there; look for it with rbd ls and in rbd trash ls")
    return UnavailableError(f"{what}: {said[:400]}")
