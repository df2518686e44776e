"""StorageClass parameters."""

from __future__ import annotations

import pytest

from csi import parameters
from csi.parameters import ClassParameters
from executor.errors import InvalidError

LEAST = {"clusterID": "prod", "pool": "rbd"}


def test_the_least_that_a_class_says_is_cluster_and_pool() -> None:
    assert parameters.parse(LEAST) == ClassParameters("prod", "rbd")


def test_every_parameter_is_taken_on() -> None:
    given = {
        **LEAST,
        "dataPool": "ec",
        "imageFeatures": "layering, exclusive-lock",
        "mkfsOptions": "-m0",
        "mounter": "fuse",
        "mapOptions": "a,b",
        "volumeNamePrefix": "vol-",
        "csi.storage.k8s.io/fstype": "xfs",
    }

    expected = ClassParameters("prod", "rbd", "ec", 5, "-m0", "fuse", "a,b", "vol-", "xfs")
    assert parameters.parse(given) == expected


def test_the_default_features_are_those_that_librbd_numbers_61() -> None:
    assert parameters.parse(LEAST).features == 61


def test_empty_values_count_as_absent() -> None:
    optional = ("dataPool", "imageFeatures", "mkfsOptions", "mounter", "mapOptions", "volumeNamePrefix")

    assert parameters.parse(LEAST | dict.fromkeys(optional, "")) == parameters.parse(LEAST)


def test_what_the_provisioner_consumes_is_ignored_and_its_metadata_is_kept_apart() -> None:
    given = {
        **LEAST,
        "csi.storage.k8s.io/provisioner-secret-name": "s",
        "csi.storage.k8s.io/provisioner-secret-namespace": "n",
        "csi.storage.k8s.io/secret-name": "s",
        "csi.storage.k8s.io/pv/name": "pv-1",
        "csi.storage.k8s.io/pvc/name": "claim",
        "csi.storage.k8s.io/pvc/namespace": "space",
    }

    assert parameters.parse(given) == parameters.parse(LEAST)
    assert parameters.metadata(given) == {
        "csi.storage.k8s.io/pv/name": "pv-1",
        "csi.storage.k8s.io/pvc/name": "claim",
        "csi.storage.k8s.io/pvc/namespace": "space",
    }


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"clusterID": ""}, "clusterID is missing"),
        ({"pool": ""}, "pool is missing"),
        ({"Pool": "rbd"}, "unknown parameter 'Pool'; known are: clusterID, pool, dataPool"),
        ({"csi.storage.k8s.io/other": "x"}, "unknown parameter 'csi.storage.k8s.io/other'"),
        ({"clusterID": "../etc"}, "clusterID is '../etc'"),
        ({"clusterID": "a" * 65}, "at most 64"),
        ({"pool": "a/b"}, "pool is 'a/b'"),
        ({"pool": "a@b"}, "pool is 'a@b'"),
        ({"pool": "a" * 129}, "at most 128 bytes"),
        ({"dataPool": "a\0b"}, "dataPool is 'a"),
        (
            {"imageFeatures": "layering,journaling"},
            "names 'journaling', which is not supported; known are: layering",
        ),
        ({"imageFeatures": "object-map"}, "object-map without exclusive-lock"),
        ({"imageFeatures": "exclusive-lock,fast-diff"}, "fast-diff without object-map"),
        ({"imageFeatures": "layering,,"}, "names ''"),
        ({"mounter": "nbd"}, "mounter is 'nbd', which is not supported; known are: krbd, fuse"),
        ({"mkfsOptions": "-m0\n-F"}, "mkfsOptions"),
        ({"mapOptions": "a\tb"}, "mapOptions"),
        ({"volumeNamePrefix": "a/b"}, "volumeNamePrefix is 'a/b'"),
        ({"volumeNamePrefix": "a" * 61}, "at most 60 bytes"),
        (
            {"csi.storage.k8s.io/fstype": "btrfs"},
            "fstype is 'btrfs', which is not supported; known are: ext4, xfs",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(changed: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidError) as refused:
        parameters.parse(LEAST | changed)

    assert says in str(refused.value)
