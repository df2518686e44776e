"""What the mapper `krbd` takes for its own and how it maps; the driver itself is exercised in a guest."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from csi.node.krbd import KrbdMapper
from csi.node.krbd_options import krbd_options
from csi.node.map_file import MapFile, MappedImage
from csi.node.ports import Credentials, MapTarget
from csi.node.run import Runner
from csi.node.sysfs_rbd import SysfsRbd
from executor.errors import InvalidError, PreconditionError
from omap.store import Place

FSID = "eb54f8b7-4c1a-4de6-8cb2-92d67027ac2e"
VOLUME = "0c1f2c9e-7f35-4f10-9d2a-6b7f7a3f8a11"
IMAGE = MappedImage(FSID, 3, "10088854503c", read_only=False)
TARGET = MapTarget(
    VOLUME,
    Place("prod", "rbd"),
    3,
    f"csi-vol-{VOLUME}",
    "10088854503c",
    1 << 30,
    ("10.0.0.1:6789",),
    fsid=FSID,
    features=61,
)
KEY = Credentials("waymark", "bm90IGEga2V5")


@dataclasses.dataclass
class Kernel:
    """A sysfs as the kernel's driver fills it."""

    root: pathlib.Path

    def load(self, features: int = 0x1BF) -> None:
        (self.root / "bus" / "rbd" / "devices").mkdir(parents=True)
        (self.root / "bus" / "rbd" / "supported_features").write_text(f"{features:#x}\n")

    def map(self, number: int, **changed: str) -> None:
        told = {
            "pool_id": "3",
            "image_id": "10088854503c",
            "current_snap": "-",
            "cluster_fsid": FSID,
            "size": str(1 << 30),
            "client_addr": f"10.0.0.9:0/{number}",
            "config_info": "10.0.0.1:6789 name=waymark,key=client.waymark,noshare rbd csi-vol-x -",
            **changed,
        }
        folder = self.root / "bus" / "rbd" / "devices" / str(number)
        folder.mkdir()
        for name, value in told.items():
            (folder / name).write_text(value + "\n")
        block = self.root / "block" / f"rbd{number}"
        block.mkdir(parents=True)
        (block / "ro").write_text("0\n")


@pytest.fixture
def kernel(tmp_path: pathlib.Path) -> Kernel:
    return Kernel(tmp_path / "sys")


@pytest.fixture
def mapper(tmp_path: pathlib.Path, kernel: Kernel) -> KrbdMapper:
    return KrbdMapper(tmp_path / "run", Runner(None), kernel=SysfsRbd(kernel.root))


@pytest.fixture
def file(tmp_path: pathlib.Path) -> MapFile:
    return MapFile(tmp_path / "run" / "krbd", VOLUME)


def test_nothing_is_mapped_where_the_kernel_has_no_driver(mapper: KrbdMapper, file: MapFile) -> None:
    assert mapper.is_clear(VOLUME)
    assert mapper.find(VOLUME) is None
    file.write(IMAGE)
    assert mapper.find(VOLUME) is None
    assert not mapper.is_clear(VOLUME)
    mapper.unmap(VOLUME)
    assert mapper.is_clear(VOLUME)


def test_a_map_that_a_killed_plugin_left_is_found_and_told(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile
) -> None:
    kernel.load()
    file.write(IMAGE)
    kernel.map(4)
    device = mapper.find(VOLUME)
    assert device is not None
    assert (device.path, device.pool_id, device.image_id) == ("/dev/rbd4", 3, "10088854503c")
    assert mapper.watching(VOLUME) == {"10.0.0.9:0/4"}
    assert mapper.map(TARGET, KEY) == device
    assert mapper.volumes() == (VOLUME,)


def test_a_map_of_an_image_that_became_larger_meanwhile_is_the_volumes(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile
) -> None:
    kernel.load()
    file.write(IMAGE)
    kernel.map(4, size=str(2 << 30))
    assert mapper.map(TARGET, KEY).path == "/dev/rbd4"


@pytest.mark.parametrize(
    "changed",
    [
        {"pool_id": "4"},
        {"image_id": "2a"},
        {"cluster_fsid": "11111111-4c1a-4de6-8cb2-92d67027ac2e"},
        {"current_snap": "snap"},
        {"config_info": "10.0.0.1:6789 name=admin,key=client.admin rbd csi-vol-x -"},
    ],
    ids=["another pool", "another image", "another cluster", "a snapshot", "mapped by hand"],
)
def test_another_map_is_not_the_volumes(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile, changed: dict[str, str]
) -> None:
    kernel.load()
    file.write(IMAGE)
    kernel.map(0, **changed)
    assert mapper.find(VOLUME) is None
    assert mapper.watching(VOLUME) == frozenset()


def test_a_map_without_the_volumes_file_is_somebody_elses(mapper: KrbdMapper, kernel: Kernel) -> None:
    kernel.load()
    kernel.map(0)
    assert mapper.find(VOLUME) is None
    assert mapper.is_clear(VOLUME)


def test_two_maps_of_one_volume_are_named(mapper: KrbdMapper, kernel: Kernel, file: MapFile) -> None:
    kernel.load()
    file.write(IMAGE)
    kernel.map(0)
    kernel.map(1)
    with pytest.raises(PreconditionError, match=r"/dev/rbd0, /dev/rbd1"):
        mapper.find(VOLUME)


def test_a_volume_mapped_for_writing_is_not_taken_for_reading_only(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile
) -> None:
    kernel.load()
    file.write(IMAGE)
    kernel.map(0)
    with pytest.raises(PreconditionError, match=r"as image 10088854503c of pool 3, not as .* read-only"):
        mapper.map(dataclasses.replace(TARGET, read_only=True), KEY)


def test_features_that_the_kernel_does_not_know_are_named(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile
) -> None:
    kernel.load(features=0x5)
    with pytest.raises(PreconditionError, match="object-map, fast-diff, deep-flatten"):
        mapper.map(TARGET, KEY)
    assert not file.exists()


def test_a_file_that_does_not_say_which_image_shows_no_device(
    mapper: KrbdMapper, kernel: Kernel, file: MapFile, tmp_path: pathlib.Path
) -> None:
    kernel.load()
    kernel.map(0)
    file.write(IMAGE)
    (tmp_path / "run" / "krbd" / f"{VOLUME}.json").write_text(json.dumps({"image": 1}))
    assert mapper.find(VOLUME) is None
    assert not mapper.is_clear(VOLUME)


@pytest.mark.parametrize("volume", ["", "../x", ".hidden"])
def test_what_is_no_uuid_reaches_no_path(mapper: KrbdMapper, volume: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        mapper.find(volume)


@pytest.mark.parametrize(
    ("given", "monitors", "has", "has_not"),
    [
        ((), ("10.0.0.1:6789",), {"noshare"}, {"ms_mode=prefer-crc"}),
        (("queue_depth=64",), ("10.0.0.1",), {"noshare", "queue_depth=64"}, {"ms_mode=prefer-crc"}),
        ((), ("[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]",), {"noshare"}, {"ms_mode=prefer-crc"}),
        ((), ("[v2:10.0.0.1:3300/0]",), {"noshare", "ms_mode=prefer-crc"}, set[str]()),
        ((), ("10.0.0.1:3300",), {"ms_mode=prefer-crc"}, set[str]()),
        ((), ("10.0.0.1:3300", "10.0.0.2:6789"), {"noshare"}, {"ms_mode=prefer-crc"}),
        (("ms_mode=secure",), ("10.0.0.1:3300",), {"ms_mode=secure"}, {"ms_mode=prefer-crc"}),
    ],
)
def test_every_map_is_a_client_of_its_own_and_speaks_to_the_monitors(
    given: tuple[str, ...], monitors: tuple[str, ...], has: set[str], has_not: set[str]
) -> None:
    options = set(krbd_options(given, monitors, read_only=False).split(","))
    assert has <= options
    assert not has_not & options
    assert "ro" not in options
    assert "ro" in krbd_options(given, monitors, read_only=True).split(",")


@pytest.mark.parametrize("option", ["share", "noshare", "rw", "secret=x", "name=admin", "force"])
def test_options_that_the_driver_sets_are_refused_without_their_value(option: str) -> None:
    with pytest.raises(InvalidError, match=f"mapOptions {option.partition('=')[0]}:"):
        krbd_options(["queue_depth=1", option], ("10.0.0.1",), read_only=False)
