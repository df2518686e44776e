"""StorageClass parameters, spelled as in ceph-csi.

| key | meaning | if absent |
|---|---|---|
| `clusterID` | cluster, as in config.json | required |
| `pool` | pool of images | required |
| `dataPool` | pool of the images' data, for example an erasure-coded one | data is kept in `pool` |
| `imageFeatures` | names of RBD features, separated by commas | all of FEATURES |
| `mounter` | what makes an image a device of the node: `krbd` (the kernel) or `fuse` (a daemon) | `krbd` |
| `mapOptions` | options for it | none |
| `mkfsOptions` | options for mkfs | none |
| `volumeNamePrefix` | begin of the images' names | `csi-vol-` |
| `csi.storage.k8s.io/fstype` | file system where the request names none | `ext4` |

An optional key with an empty value counts as absent, as templates write it.  Keys that the provisioner
consumes itself (`csi.storage.k8s.io/...-secret-name`, `-namespace`) are ignored, its metadata keys are kept
apart, and any other key is refused by name: a parameter that is misspelled must not silently change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csi import rbd_features
from csi.handles import MAX_CLUSTER_ID_BYTES, is_cluster_id
from executor.errors import InvalidError

FS_TYPES = ("ext4", "xfs")
DEFAULT_FS_TYPE = "ext4"
MOUNTERS = ("krbd", "fuse")
DEFAULT_NAME_PREFIX = "csi-vol-"

FEATURES: Mapping[str, int] = {
    name: rbd_features.FEATURES[name]
    for name in ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")
}
"""The RBD features that may be asked for, with librbd's bits."""

OBJECT_MAP = FEATURES["object-map"]
DEFAULT_FEATURES = sum(FEATURES.values())

_NEEDS = {"object-map": "exclusive-lock", "fast-diff": "object-map"}

FS_TYPE_KEY = "csi.storage.k8s.io/fstype"
METADATA_KEYS = (
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
)
_CONSUMED = re.compile(r"csi\.storage\.k8s\.io/([a-z-]+-)?secret-(name|namespace)")

_MAX_POOL_BYTES = 128
_MAX_PREFIX_BYTES = 96 - 36
"""librbd's longest image name is 96 bytes, and a UUID follows the prefix."""


@dataclass(frozen=True, slots=True)
class ClassParameters:
    """A StorageClass, checked.  `features` are librbd's bits; `data_pool` None keeps data in `pool`."""

    cluster_id: str
    pool: str
    data_pool: str | None = None
    features: int = DEFAULT_FEATURES
    mkfs_options: str = ""
    mounter: str = MOUNTERS[0]
    map_options: str = ""
    name_prefix: str = DEFAULT_NAME_PREFIX
    fs_type: str = DEFAULT_FS_TYPE


def parse(parameters: Mapping[str, str]) -> ClassParameters:
    """Check the parameters of a request.  Raises InvalidError naming the key and what is allowed."""
    for key in sorted(parameters):
        if key not in _KNOWN and key not in METADATA_KEYS and not _CONSUMED.fullmatch(key):
            raise InvalidError(f"unknown parameter {key!r}; known are: {', '.join(_KNOWN)}")
    given = {key: value for key, value in parameters.items() if key in _KNOWN and value}
    for key in ("clusterID", "pool"):
        if key not in given:
            raise InvalidError(f"parameter {key} is missing; set it in the StorageClass")
    for key, value in given.items():
        _KNOWN[key](key, value)
    return ClassParameters(
        cluster_id=given["clusterID"],
        pool=given["pool"],
        data_pool=given.get("dataPool"),
        features=_features(given["imageFeatures"]) if "imageFeatures" in given else DEFAULT_FEATURES,
        mkfs_options=given.get("mkfsOptions", ""),
        mounter=given.get("mounter", MOUNTERS[0]),
        map_options=given.get("mapOptions", ""),
        name_prefix=given.get("volumeNamePrefix", DEFAULT_NAME_PREFIX),
        fs_type=given.get(FS_TYPE_KEY, DEFAULT_FS_TYPE),
    )


def metadata(parameters: Mapping[str, str]) -> dict[str, str]:
    """The names of PV and PVC that the provisioner adds; they may differ between requests of one claim."""
    return {key: parameters[key] for key in METADATA_KEYS if key in parameters}


def _features(value: str) -> int:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in FEATURES:
            raise InvalidError(
                f"parameter imageFeatures names {name!r}, which is not supported;"
                f" known are: {', '.join(FEATURES)}"
            )
        needed = _NEEDS.get(name)
        if needed is not None and needed not in names:
            raise InvalidError(
                f"parameter imageFeatures names {name} without {needed}, which it needs; add {needed}"
            )
    return sum({FEATURES[name] for name in names})


def _check_cluster_id(key: str, value: str) -> None:
    if not is_cluster_id(value):
        raise InvalidError(
            f"parameter {key} is {value!r}: a clusterID has letters, digits, '.', '_' and '-',"
            f" at most {MAX_CLUSTER_ID_BYTES}, and begins with a letter or digit"
        )


def _check_pool(key: str, value: str) -> None:
    if len(value.encode()) > _MAX_POOL_BYTES or not value.isprintable() or set(value) & set("/@"):
        raise InvalidError(
            f"parameter {key} is {value!r}: a pool's name has at most {_MAX_POOL_BYTES} bytes, no '/', no '@'"
            " and no control characters (the RADOS namespace is set in config.json)"
        )


def _check_prefix(key: str, value: str) -> None:
    if len(value.encode()) > _MAX_PREFIX_BYTES or not value.isprintable() or set(value) & set("/@ "):
        raise InvalidError(
            f"parameter {key} is {value!r}: it begins the images' names and has at most {_MAX_PREFIX_BYTES}"
            " bytes, no '/', no '@', no blanks and no control characters"
        )


def _check_options(key: str, value: str) -> None:
    if not value.isprintable():
        raise InvalidError(f"parameter {key} is {value!r}: it must be one line of printable characters")


def _check_features(_key: str, value: str) -> None:
    _features(value)


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, str], None]:
    def check(key: str, value: str) -> None:
        if value not in allowed:
            raise InvalidError(
                f"parameter {key} is {value!r}, which is not supported; known are: {', '.join(allowed)}"
            )

    return check


_KNOWN: Mapping[str, Callable[[str, str], None]] = {
    "clusterID": _check_cluster_id,
    "pool": _check_pool,
    "dataPool": _check_pool,
    "imageFeatures": _check_features,
    "mounter": _one_of(MOUNTERS),
    "mapOptions": _check_options,
    "mkfsOptions": _check_options,
    "volumeNamePrefix": _check_prefix,
    FS_TYPE_KEY: _one_of(FS_TYPES),
}
