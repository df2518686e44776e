"""Mount flags: which ones a StorageClass or PV may give, and which are set when it says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from executor.errors import InvalidError

_DEFAULTS = {
    # A device that was fenced fails its journal's next write; from then on nobody must believe that writes
    # arrive.
    "ext4": ("errors", "errors=remount-ro"),
    # A clone carries its parent's UUID, and xfs refuses a second mount of one UUID on a node.
    "xfs": ("nouuid", "nouuid"),
}

_REFUSED = {
    **dict.fromkeys(("bind", "rbind", "move", "remount"), "it changes which mount is made"),
    **dict.fromkeys(("loop", "offset", "sizelimit", "encryption"), "it puts another device in between"),
    **dict.fromkeys(("logdev", "rtdev", "journal_dev", "journal_path"), "it names another device"),
    **dict.fromkeys(("helper", "uhelper"), "it names a program to run"),
    **dict.fromkeys(
        ("shared", "slave", "private", "unbindable", "rshared", "rslave", "rprivate", "runbindable"),
        "propagation is the kubelet's to decide",
    ),
    **dict.fromkeys(
        ("user", "users", "owner", "group", "fake", "auto", "noauto", "nofail"), "it is for fstab only"
    ),
}


def with_defaults(fs_type: str, flags: Sequence[str]) -> tuple[str, ...]:
    """The flags to mount with: those given, and the file system's default where nothing was said about it.

    Raises InvalidError naming a flag that is refused, and why.
    """
    for flag in flags:
        _refuse_unsafe(flag)
    name, default = _DEFAULTS.get(fs_type, ("", ""))
    said = {flag.partition("=")[0] for flag in flags}
    return (*flags, default) if default and name not in said else tuple(flags)


def _refuse_unsafe(flag: str) -> None:
    told = f"the mount flag {flag[:128]!r}"
    if not flag or not flag.isprintable() or flag.startswith("-"):
        raise InvalidError(f"{told} is not a flag; give flags as mount's -o takes them")
    # One flag may hold several, separated by commas.
    for each in flag.split(","):
        name = each.partition("=")[0].strip()
        reason = _REFUSED.get(name)
        if name.lower().startswith("x-"):
            reason = "it is an instruction to mount itself"
        if reason is not None:
            raise InvalidError(f"{told} is refused because {reason}; remove it from the class or volume")
