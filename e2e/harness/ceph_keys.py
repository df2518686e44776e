"""The cephx users of a micro Ceph: what each may do, and the keyrings they are written to."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import struct
import time

USER = "waymark"
"""The driver's user, `client.waymark`."""

_CAPS: dict[str, dict[str, str]] = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mgr": "allow *"},
    # What the admin docs ask for and nothing more. In the monitor the profile also allows
    # `osd blocklist add`, by which a successor fences a dead predecessor. The OSD profile names no pool,
    # because one user serves every pool of a StorageClass, its data pools and the journal pool; an admin
    # may narrow it with `pool=`.
    f"client.{USER}": {"mon": "profile rbd", "osd": "profile rbd", "mgr": "profile rbd"},
}
_OSD_CAPS = {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}


def new_key() -> str:
    """Return a cephx key: type, creation time and length in front of 16 random bytes."""
    return base64.b64encode(struct.pack("<HIIH", 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


def write_private(path: pathlib.Path, text: str) -> None:
    """Write a file that nobody else may read, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def write_keyrings(folder: pathlib.Path, osds: int) -> pathlib.Path:
    """Write every user's keyring, `waymark.json` for the driver, and one file with all of them.

    Returns the path of that last one: the monitor takes every user in it when it is made, so that nobody
    has to wait for `auth add`.
    """
    everything = ""
    for entity, caps in (_CAPS | {f"osd.{n}": _OSD_CAPS for n in range(osds)}).items():
        key = new_key()
        keyring = f"[{entity}]\n\tkey = {key}\n" + "".join(f'\tcaps {k} = "{v}"\n' for k, v in caps.items())
        everything += keyring
        if entity == f"client.{USER}":
            write_private(folder / f"{USER}.json", json.dumps({"userID": USER, "userKey": key}) + "\n")
        write_private(folder / f"{'mon.a' if entity == 'mon.' else entity}.keyring", keyring)
    write_private(folder / "bootstrap.keyring", everything)
    return folder / "bootstrap.keyring"
