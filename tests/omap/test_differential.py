"""Random lists of operations get the same answers from every store.

`WAYMARK_OPERATION_LISTS` says how many lists there are (100).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeAlias

import pytest

from omap.files import FileStore
from omap.memory import MemoryStore
from omap.rados import RadosStore
from omap.store import Absent, Condition, Create, Equals, Store, StoreError, Write

LISTS = int(os.environ.get("WAYMARK_OPERATION_LISTS", "100"))
BATCH = 25
STEPS = 40
KEYS = ("waymark/rev", "tx/1", "tx/2", "ключ", "a%2Fb")
VALUES = (b"1", b"12", b'{"a":1}', b"00000000000000000001 w.t.s")
RAW_VALUES = (*VALUES, "é".encode(), b"\x00\xff")

Step: TypeAlias = Callable[[Store], object]


def answer(store: Store, step: Step) -> object:
    """What the step returned, or the kind of its error."""
    try:
        return step(store)
    except StoreError as error:
        return type(error)


def random_condition(dice: random.Random) -> Condition:
    key = dice.choice(KEYS)
    return Absent(key) if dice.random() < 0.4 else Equals(key, dice.choice(VALUES))


def random_write(dice: random.Random) -> Write:
    conditions = tuple(random_condition(dice) for _ in range(dice.choice((0, 0, 1, 1, 2))))
    if dice.random() < 0.15:
        return Write(conditions, remove_object=True)
    sets = {dice.choice(KEYS): dice.choice(RAW_VALUES) for _ in range(dice.randrange(4))}
    removes = tuple(dice.choice(KEYS) for _ in range(dice.randrange(3)))
    kept = tuple(key for key in removes if key not in sets)
    return Write(conditions, sets, kept, dice.choice(list(Create)))


def random_step(dice: random.Random, objects: tuple[str, ...]) -> Step:
    name = dice.choice(objects)
    kind = dice.random()
    if kind < 0.5:
        write = random_write(dice)
        return lambda store: store.write(name, write)
    if kind < 0.65:
        writes = [(each, random_write(dice)) for each in objects]
        return lambda store: store.write_all(writes)
    if kind < 0.85:
        prefix = dice.choice(("", "tx/", "ключ", "none"))
        return lambda store: list(store.read(name, prefix=prefix).items())
    if kind < 0.95:
        keys = dice.sample(KEYS, 3)
        return lambda store: store.read_keys(name, keys)
    return lambda store: sorted(each for each in store.names(objects[0][:2]))


@pytest.mark.ceph
@pytest.mark.parametrize("batch", range(0, LISTS, BATCH))
def test_stores_agree(
    memory_store: MemoryStore, file_store: FileStore, rados_store: RadosStore, batch: int
) -> None:
    for seed in range(batch, min(batch + BATCH, LISTS)):
        dice = random.Random(seed)
        objects = (f"{seed:02}-a", f"{seed:02}-b/c", f"{seed:02}-ö")
        for number in range(STEPS):
            step = random_step(dice, objects)
            answers = [answer(store, step) for store in (memory_store, file_store, rados_store)]

            assert answers[0] == answers[1] == answers[2], f"list {seed}, step {number}"
