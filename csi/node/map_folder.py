"""The folder of one volume that the mapper `fuse` keeps, and what the kernel says about it."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from csi.node import daemons, mount_table

STORAGE_DAEMON = "qemu-storage-daemon"


@dataclass(frozen=True, slots=True)
class MapIdentity:
    """What `identity.json` holds."""

    pool_id: int
    image_id: str
    pool: str
    namespace: str
    image_name: str
    read_only: bool


class MapFolder:
    """The folder of one volume."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.export = path / "export"
        self.pid_file = path / "pid"
        self._identity = path / "identity.json"

    def identity(self) -> MapIdentity | None:
        """Which image the folder is of; None when it does not say."""
        try:
            return MapIdentity(**json.loads(self._identity.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def prepare(self, identity: MapIdentity) -> None:
        """Make the folder with its identity, durable before a daemon can run."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path / "identity.new"
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(asdict(identity), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._identity)
        self.export.touch(mode=0o600)

    def remove(self) -> None:
        """Remove what the folder holds, the identity last; absent is success."""
        for path in (self.export, self.pid_file, self.path / "identity.new", self._identity):
            path.unlink(missing_ok=True)
        if self.path.is_dir():
            self.path.rmdir()

    def is_daemon(self, words: Sequence[str]) -> bool:
        """Whether a command line is that of this folder's daemon."""
        is_program = bool(words) and pathlib.PurePath(words[0]).name == STORAGE_DAEMON
        return is_program and str(self.pid_file) in words

    def daemon(self) -> int | None:
        """The daemon that serves, by its own pid file and its command line."""
        try:
            pid = int(self.pid_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return pid if self.is_daemon(daemons.command_line(pid)) else None

    def shows(self, daemon: int, identity: MapIdentity) -> bool:
        """Whether the daemon was started with the image of this identity."""
        return image_words(identity.pool, identity.namespace, identity.image_name) in "\0".join(
            daemons.command_line(daemon)
        )

    def is_mounted(self) -> bool:
        """Whether an export is mounted on the file; the file itself is not looked at, it might not answer."""
        mount = mount_table.at(str(self.export))
        return mount is not None and mount.fs_type.startswith("fuse")


def image_words(pool: str, namespace: str, image: str) -> str:
    """How an image stands in the daemon's command line, and in no other one's."""
    return json.dumps({"pool": pool, "namespace": namespace, "image": image})[1:-1]
