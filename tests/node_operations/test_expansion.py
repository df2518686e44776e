"""What a node does with a volume that became larger, beside what every disturbed operation does."""

from __future__ import annotations

from tests.executor.world import GIB, RBD
from tests.node_operations.nodes import Node, NodeWorld


def sizes(world: NodeWorld) -> tuple[int, int]:
    """Of the image, and of what is on it."""
    (mapping,) = world.host().mappings.values()
    image = world.process("onlooker").session.images(RBD).probe(mapping.target.image_name)
    return image.size_bytes, world.disks.filled(mapping.target)


def test_an_expansion_that_goes_on_after_another_one_never_makes_the_image_smaller(world: NodeWorld) -> None:
    """Its intent says how large the image was; the mapper would make the image just as large."""
    world.node().stage()
    world.expand_volume(2 * GIB)
    world.kill_at("node_expand_volume.device.apply", Node.expand_here)
    world.expand_volume(3 * GIB)
    node = world.node()
    node.expand_here(2 * GIB)
    assert sizes(world) == (3 * GIB, 3 * GIB)
    node.expand_here(3 * GIB)
    assert sizes(world) == (3 * GIB, 3 * GIB)
