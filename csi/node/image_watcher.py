"""Joins the node in memory to the images in memory: what a host does to an image, the image shows."""

from __future__ import annotations

from csi import memory_images
from csi.node.ports import MapTarget
from omap.memory import MemoryCluster


class ImageWatcher:
    """Opens, writes and discards a cluster's images as mappers do; `address` plays the mappers' client."""

    def __init__(self, cluster: MemoryCluster, address: str = "192.0.2.7:0/7") -> None:
        self._cluster = cluster
        self._address = address

    def opened(self, target: MapTarget) -> None:
        """The image is watched from now on."""
        memory_images.open_image(self._cluster, target.place, target.image_id, self._address)

    def closed(self, target: MapTarget) -> None:
        """End the watch."""
        memory_images.close_image(self._cluster, target.place, target.image_id, self._address)

    def resized(self, target: MapTarget) -> None:
        """The image has the size that the device shows."""
        memory_images.resize_image(self._cluster, target.place, target.image_id, target.size_bytes)

    def written(self, target: MapTarget) -> None:
        """The image's first data object is there."""
        memory_images.write_data(self._cluster, target.place, target.image_id)

    def discarded(self, target: MapTarget) -> None:
        """None of its data objects is."""
        memory_images.discard_data(self._cluster, target.place, target.image_id)
