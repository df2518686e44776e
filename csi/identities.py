"""Which Ceph user and key a call uses.

In order: the secret that came with the request (`userID` and `userKey`, as ceph-csi names them), then the
driver's own identity for the cluster, a mounted folder `<keys>/<clusterID>/` with the files `userID` and
`userKey`.  What can be seen to be no key is refused here, before any connection.
"""

from __future__ import annotations

import base64
import binascii
import pathlib
import struct
from collections.abc import Mapping

from csi.node.ports import Credentials
from executor.errors import PreconditionError, UnauthenticatedError

USER_ID = "userID"
USER_KEY = "userKey"

_REQUEST = "the request's secret"

_KEY_HEAD = struct.Struct(
    "<HIIH"
)  # kind, seconds and nanoseconds of its making, bytes of the secret that follows
_KEY_KINDS = {1, 2}  # AES with 128 bits, and with 256 bits in newer releases
_LEAST_SECRET_BYTES = 16


def from_secrets(secrets: Mapping[str, str]) -> Credentials | None:
    """The identity in a request's secrets, None if they name none.

    Raises UnauthenticatedError if only one half is there or the key can be no key; the text never shows it.
    """
    user, key = secrets.get(USER_ID, ""), secrets.get(USER_KEY, "")
    if not user and not key:
        return None
    return _checked(user, key, _REQUEST)


class Keyring:
    """The driver's own identities, one folder a cluster; a rotated key counts at the next use."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        """Keep identities in `folder`; None is a driver without any."""
        self._folder = folder

    def own(self, cluster_id: str) -> Credentials | None:
        """The driver's identity for a cluster, None if it has none.

        A line end after the user or the key is dropped (editors and `echo` leave one).  Raises
        UnauthenticatedError as `from_secrets` does, naming the folder.
        """
        if self._folder is None or not _is_folder_name(cluster_id):
            return None
        folder = self._folder / cluster_id
        try:
            user = (folder / USER_ID).read_text(encoding="utf-8")
            key = (folder / USER_KEY).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise UnauthenticatedError(
                f"the driver's identity in {folder} cannot be read ({type(error).__name__}):"
                f" it needs the files {USER_ID} and {USER_KEY}, readable by the driver"
            ) from None
        return _checked(user.removesuffix("\n"), key.removesuffix("\n"), str(folder))

    def identity(self, cluster_id: str, given: Credentials | None) -> Credentials:
        """The identity to use: the one given with the request, else the driver's own.

        Raises PreconditionError saying what to set up if there is neither.
        """
        found = given or self.own(cluster_id)
        if found is not None:
            return found
        folder = self._folder / cluster_id if self._folder else f"<keys>/{cluster_id}"
        raise PreconditionError(
            f"no Ceph user for cluster {cluster_id}: the request carries no secret with {USER_ID} and"
            f" {USER_KEY}, and the driver has no identity in {folder};"
            " name a secret in the StorageClass or mount one there"
        )


def _checked(user: str, key: str, source: str) -> Credentials:
    if not user or not key:
        missing = USER_KEY if user else USER_ID
        raise UnauthenticatedError(f"{source} has no {missing}: it must hold {USER_ID} and {USER_KEY}")
    if user.strip() != user or not user.isprintable():
        raise UnauthenticatedError(f"the {USER_ID} in {source} has white space around it or is not printable")
    if user.startswith("client."):
        raise UnauthenticatedError(
            f"the {USER_ID} in {source} is {user!r}: it must be the user's name without 'client.'"
        )
    if any(character.isspace() for character in key):
        raise UnauthenticatedError(
            f"the {USER_KEY} in {source} contains white space, perhaps a line end:"
            " store exactly what `ceph auth print-key` prints, without a line end"
        )
    if not _is_cephx_key(key):
        raise UnauthenticatedError(
            f"the {USER_KEY} in {source} is not a Ceph key (base64):"
            " store exactly what `ceph auth print-key` prints"
        )
    return Credentials(user, key)


def _is_cephx_key(key: str) -> bool:
    """Whether librados can decode the key.  Checked here because librados prints the one that it cannot."""
    try:
        decoded = base64.b64decode(key, validate=True)
        kind, _, _, length = _KEY_HEAD.unpack_from(decoded)
    except (binascii.Error, ValueError, struct.error):
        return False
    return kind in _KEY_KINDS and length >= _LEAST_SECRET_BYTES and len(decoded) == _KEY_HEAD.size + length


def _is_folder_name(cluster_id: str) -> bool:
    return (
        bool(cluster_id)
        and cluster_id not in {".", ".."}
        and "/" not in cluster_id
        and "\0" not in cluster_id
    )
