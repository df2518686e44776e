"""Paths that a request names: where a node plugin may make folders and mounts at all.

The plugin runs as root, so a path of a request is taken only inside the kubelet's tree and only without
symlinks, which anybody who can write somewhere below could point elsewhere.
"""

from __future__ import annotations

import os
import pathlib
import stat

from executor.errors import InvalidError

MAX_PATH_BYTES = 4095
"""The kernel's limit of a path (PATH_MAX without its final NUL)."""

MAX_NAME_BYTES = 255
"""The kernel's limit of one component."""


def check_path(path: str, kubelet_dir: str, field: str) -> str:
    """The path of a request, when a mount may be made there; `field` is its name in the request.

    Raises InvalidError when it is empty, relative, not normalised, too long, outside the kubelet's
    directory, or when a component below that directory is a symlink.  Components that are not there yet are
    in order.
    """
    if not path:
        raise InvalidError(f"{field} is missing")
    told = f"{field} {path[:256]!r}"
    if len(path.encode(errors="surrogateescape")) > MAX_PATH_BYTES:
        raise InvalidError(f"{told}... is longer than the {MAX_PATH_BYTES} bytes that a path may have")
    if any(ord(character) < ord(" ") or character == "\x7f" for character in path):
        raise InvalidError(f"{told} holds a control character")
    if not path.startswith("/") or os.path.normpath(path) != path or path.startswith("//"):
        raise InvalidError(f"{told} is not an absolute path without '.', '..', '//' and a final '/'")
    root = pathlib.Path(os.path.normpath(kubelet_dir))
    wanted = pathlib.Path(path)
    if root not in wanted.parents:
        raise InvalidError(
            f"{told} lies outside of {root}, the kubelet's directory; where the kubelet of this node uses "
            "another one, give that to the plugin as --kubelet-dir"
        )
    if any(len(part.encode(errors="surrogateescape")) > MAX_NAME_BYTES for part in wanted.parts):
        raise InvalidError(f"{told} has a component longer than {MAX_NAME_BYTES} bytes")
    _refuse_symlinks(root, wanted, told)
    return path


def _refuse_symlinks(root: pathlib.Path, wanted: pathlib.Path, told: str) -> None:
    component = root
    for part in wanted.relative_to(root).parts:
        component /= part
        try:
            mode = component.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            # A mount whose device is gone answers EIO or ENOTCONN; it is no symlink, and unmounting it must
            # work.
            if component == wanted:
                return
            raise InvalidError(f"{told} cannot be reached at {component}: {error.strerror}") from None
        if stat.S_ISLNK(mode):
            raise InvalidError(f"{told} leads through the symlink {component}, and symlinks are not followed")
        if component != wanted and not stat.S_ISDIR(mode):
            raise InvalidError(f"{told} leads through {component}, which is not a directory")
