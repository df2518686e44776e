"""How qemu-storage-daemon is started for one image.

All options are given as JSON, in which no character of a name means anything else.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from csi.node.map_folder import STORAGE_DAEMON, MapFolder, image_words
from csi.node.ports import MapTarget
from executor.errors import InvalidError

_ADDRESS = re.compile(r"(?:v[12]:)?(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\],:/]+)(?::(?P<port>\d+))?(?:/\d+)?")


def storage_daemon_arguments(folder: MapFolder, target: MapTarget, user: str, key_fd: int) -> list[str]:
    """The command line; the key is read once from the descriptor `key_fd`."""
    block = {
        "driver": "rbd",
        "node-name": "image",
        "conf": os.devnull,  # none of the host's: what the driver was told is all there is
        "user": user,
        "key-secret": "key",
        "auth-client-required": ["cephx"],
        "server": [{"host": host, "port": port} for host, port in monitor_addresses(target.monitors)],
        "read-only": target.read_only,
        "cache": {"direct": True},
        "discard": "unmap",
    }
    image = image_words(target.place.pool, target.place.namespace, target.image_name)
    export = {
        "type": "fuse",
        "id": "export",
        "node-name": "image",
        "mountpoint": str(folder.export),
        "writable": not target.read_only,
        "growable": False,
        "allow-other": "off",
    }
    return [
        STORAGE_DAEMON,
        "--daemonize",
        *("--pidfile", str(folder.pid_file)),
        *("--object", f"secret,id=key,file=/dev/fd/{key_fd},format=base64"),
        *("--blockdev", json.dumps(block)[:-1] + f", {image}}}"),
        *("--export", json.dumps(export)),
    ]


def monitor_addresses(monitors: Sequence[str]) -> list[tuple[str, str]]:
    """Host and port of each monitor, from any of the forms that `mon_host` takes.

    Of a monitor with several addresses (`[v2:...,v1:...]`) all are given.  Raises InvalidError naming one
    that cannot be read.
    """
    found: list[tuple[str, str]] = []
    for monitor in monitors:
        inner = monitor.strip()
        if inner.startswith("[v") and inner.endswith("]"):
            inner = inner[1:-1]
        for address in inner.split(","):
            match = _ADDRESS.fullmatch(address.strip())
            if match is None:
                raise InvalidError(f"the monitor address {monitor!r} cannot be read; correct config.json")
            host = match["host"].strip("[]")
            ports = [match["port"]] if match["port"] else ["3300", "6789"]
            found += [(host, port) for port in ports]
    return found
