"""The StorageClass parameter `mkfsOptions`: which of the tools' options may be given.

Only options that shape the file system on its own device are taken.  Those that name another device or
file, that make no whole file system, or that switch the tools' own safety off are refused, and so is a word
that is no option at all: the tool would take it for a device.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from executor.errors import InvalidError


@dataclass(frozen=True, slots=True)
class _Tool:
    """`valued` are the letters of options that take a value, `plain` of those that take none.

    `refused` are the names inside an option's value (`device=...`) that point elsewhere.
    """

    valued: str
    plain: str
    refused: Mapping[str, frozenset[str]]
    default: tuple[str, ...]


_TOOLS = {
    "ext4": _Tool(
        valued="bCEgGiIJLmNOTU",
        plain="Djqv",
        refused={
            "J": frozenset({"device"}),
            "O": frozenset({"journal_dev"}),
            "E": frozenset({"offset", "test_fs"}),
        },
        # A new image has nothing to discard, and tables are zeroed in the background, so that mkfs takes
        # the same moment whatever the size.
        default=("-m0", "-Enodiscard,lazy_itable_init=1,lazy_journal_init=1"),
    ),
    "xfs": _Tool(
        valued="bdilLmns",
        plain="Kq",
        refused={
            "d": frozenset({"file", "name", "size", "rtinherit"}),
            "l": frozenset({"logdev", "name", "file", "internal"}),
        },
        default=("-K",),
    ),
}

FS_TYPES = tuple(sorted(_TOOLS))
"""File systems that can be made."""


def mkfs_options(fs_type: str, given: str) -> tuple[str, ...]:
    """The arguments for `mkfs.<fs_type>`: those given, or the defaults when nothing is.

    Quotes work as in a shell; nothing is expanded.  Raises InvalidError naming the file system that is not
    supported or the option that is refused.
    """
    tool = _TOOLS.get(fs_type)
    if tool is None:
        raise InvalidError(
            f"the file system {fs_type!r} is not supported; supported are {', '.join(FS_TYPES)}"
        )
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InvalidError(f"mkfsOptions {given!r} cannot be read: {error}") from None
    if not words:
        return tool.default
    _check(f"mkfs.{fs_type}", tool, words)
    return tuple(words)


def _check(name: str, tool: _Tool, words: Sequence[str]) -> None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in {"-", "--"} or not word.isprintable():
            raise InvalidError(f"mkfsOptions: {word!r} is no option of {name}")
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in tool.valued:
                if not letters and not rest:
                    raise InvalidError(f"mkfsOptions: -{letter} of {name} needs a value")
                _check_value(name, tool, letter, letters or rest.pop(0))
                letters = ""
            elif letter not in tool.plain:
                allowed = " ".join(f"-{each}" for each in sorted(tool.valued + tool.plain, key=str.lower))
                raise InvalidError(f"mkfsOptions: -{letter} of {name} is not taken; taken are {allowed}")


def _check_value(name: str, tool: _Tool, letter: str, value: str) -> None:
    for part in value.split(","):
        key = part.partition("=")[0].strip()
        if key in tool.refused.get(letter, ()):
            raise InvalidError(
                f"mkfsOptions: -{letter} {key} of {name} is refused: "
                "a file system is made on the whole of its volume's device and on nothing else"
            )
