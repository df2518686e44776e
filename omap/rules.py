"""What one `Write` does to one object: the rules of RADOS as a pure function.

The memory and the file store apply it under their lock; the RADOS store has the OSD do the same.  The
contract suite keeps the three equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from omap.store import Absent, Answer, Create, Write


def outcome(write: Write, keys: Mapping[str, bytes] | None) -> tuple[Answer, dict[str, bytes] | None]:
    """The answer to `write` on an object with these keys (None: no object), and the keys after it.

    Whether the object may be made is looked at before the conditions, as in the RADOS operation: an exclusive
    create of an object that is there is `EXISTS` whatever its keys hold.  Without `APPLIED` the object is as
    before.
    """
    before = None if keys is None else dict(keys)
    if before is None and write.create is Create.NO:
        return Answer.MISSING, None
    if before is not None and write.create is Create.EXCLUSIVE:
        return Answer.EXISTS, before
    after = dict(before or {})
    for condition in write.conditions:
        wanted = None if isinstance(condition, Absent) else condition.value
        if after.get(condition.key) != wanted:
            return Answer.CONDITION_FAILED, before
    if write.remove_object:
        return Answer.APPLIED, None
    after.update((key, bytes(value)) for key, value in write.sets.items())
    for key in write.removes:
        after.pop(key, None)
    return Answer.APPLIED, after


def selected(keys: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    """The keys that begin with `prefix`, in RADOS' order (by their UTF-8 bytes)."""
    return {key: bytes(keys[key]) for key in sorted(keys, key=str.encode) if key.startswith(prefix)}
