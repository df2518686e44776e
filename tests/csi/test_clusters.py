"""`config.json`: what is read, when it is read again, and what a wrong one does not break."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from csi.clusters import ClusterConfig, ClusterConfigs, ConfigError, parse
from executor.errors import PreconditionError

FULL = {
    "clusterID": "prod",
    "monitors": ["10.0.0.1:6789", "[v2:10.0.0.2:3300/0]"],
    "rbd": {"radosNamespace": "k8s", "netNamespaceFilePath": "/somewhere"},
    "cephFS": {"subvolumeGroup": "csi"},
    "journalPool": "meta",
    "fsid": "2f9e",
}


def write(path: pathlib.Path, *entries: object) -> None:
    replacement = path.with_suffix(".new")
    replacement.write_text(json.dumps(entries))
    replacement.replace(path)


def test_an_entry_is_read_as_ceph_csi_writes_it() -> None:
    small = {"clusterID": "lab", "monitors": ["10.1.0.1"], "rbd": {"radosNamespace": ""}}
    assert parse(json.dumps([FULL, small]).encode(), "config.json") == {
        "prod": ClusterConfig("prod", ("10.0.0.1:6789", "[v2:10.0.0.2:3300/0]"), "k8s", "meta", "2f9e"),
        "lab": ClusterConfig("lab", ("10.1.0.1",)),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("{}", "no JSON list"),
        ('["prod"]', "entry 1 is no JSON object"),
        ("[{}]", "entry 1 has no clusterID"),
        ('[{"clusterID": 7, "monitors": ["m"]}]', "clusterID is no printable text"),
        ('[{"clusterID": "a\\nb", "monitors": ["m"]}]', "clusterID is no printable text"),
        ('[{"clusterID": "prod"}]', "'prod'.*no list of monitors"),
        ('[{"clusterID": "prod", "monitors": []}]', "no list of monitors"),
        ('[{"clusterID": "prod", "monitors": ["a b"]}]', "'a b' is no address"),
        ('[{"clusterID": "prod", "monitors": ["m"], "rbd": []}]', "rbd is no JSON object"),
        ('[{"clusterID": "x", "monitors": ["m"]}, {"clusterID": "x", "monitors": ["m"]}]', "two entries"),
    ],
)
def test_a_wrong_file_is_refused_by_entry(content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"config.json.*{words}"):
        parse(content.encode(), "config.json")


def test_a_file_that_is_wrong_from_the_start_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ClusterConfigs(tmp_path / "config.json")


def test_an_unknown_cluster_is_told_with_the_known_ones_and_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    write(path, FULL, {"clusterID": "lab", "monitors": ["m"]})
    configs = ClusterConfigs(path)
    with pytest.raises(PreconditionError, match=rf"'tset'.*{path}.*lab, prod"):
        configs.get("tset")


def test_a_changed_file_counts_at_the_next_look(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    write(path, {"clusterID": "prod", "monitors": ["a"]})
    configs = ClusterConfigs(path)
    write(path, {"clusterID": "prod", "monitors": ["b"]}, {"clusterID": "lab", "monitors": ["c"]})
    assert configs.get("prod").monitors == ("b",)
    assert [config.cluster_id for config in configs.all()] == ["lab", "prod"]


def test_a_config_map_is_followed_when_its_symlink_is_swapped(tmp_path: pathlib.Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.json").write_text(
            json.dumps([{"clusterID": "prod", "monitors": [version]}])
        )
        os.utime(tmp_path / version / "config.json", (1, 1))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "config.json").symlink_to("..data/config.json")
    configs = ClusterConfigs(tmp_path / "config.json")
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert configs.get("prod").monitors == ("two",)


def test_a_broken_new_file_keeps_the_old_one_in_force_and_is_told_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    write(path, {"clusterID": "prod", "monitors": ["a"]})
    problems: list[str] = []
    configs = ClusterConfigs(path, on_broken=problems.append)

    write(path, {"clusterID": "prod"}, {"clusterID": "lab", "monitors": ["c"]})
    assert configs.get("prod").monitors == ("a",)
    with pytest.raises(PreconditionError, match=r"'lab'.*newest version.*no list of monitors"):
        configs.get("lab")
    path.unlink()
    assert configs.get("prod").monitors == ("a",)
    assert [problem.split(": ", 1)[-1].split(" (")[0] for problem in problems] == [
        "entry 1",
        "No such file or directory",
    ]

    write(path, {"clusterID": "lab", "monitors": ["c"]})
    assert configs.get("lab").monitors == ("c",)
    with pytest.raises(PreconditionError, match="it has: lab") as raised:
        configs.get("prod")
    assert "newest version" not in str(raised.value)
