"""The YAML under `deploy/`, read."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import yaml

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())

Object = dict[str, Any]


def documents(path: str) -> list[Object]:
    """The objects of one file."""
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def base(kind: str, name: str | None = None) -> Object:
    """An object of the base; only one may be of that kind and name."""
    found = [
        each
        for file in documents("base/kustomization.yaml")[0]["resources"]
        for each in documents(f"base/{file}")
        if each["kind"] == kind and name in {None, each["metadata"]["name"]}
    ]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} and name {name}"
    return found[0]


CONTROLLER = base("Deployment")["spec"]["template"]["spec"]
NODE = base("DaemonSet")["spec"]["template"]["spec"]
PODS = {"Deployment": CONTROLLER, "DaemonSet": NODE}


def driver(pod: Object) -> Object:
    """The driver's container: always the first, by which overlays find it."""
    container: Object = pod["containers"][0]
    assert container["name"] == "driver"
    return container


def patches(overlay: str) -> Iterator[tuple[str, Any]]:
    """Kind and content of each patch of an overlay."""
    for patch in documents(f"overlays/{overlay}/kustomization.yaml")[0].get("patches", []):
        yield patch["target"]["kind"], yaml.safe_load(patch["patch"])


def volume(pod: Object, path: str) -> Object:
    """The volume that a pod's driver has at a path, or at the nearest folder above it."""
    mounts = [
        mount
        for mount in driver(pod)["volumeMounts"]
        if pathlib.PurePath(path).is_relative_to(mount["mountPath"])
    ]
    name = max(mounts, key=lambda mount: len(mount["mountPath"]))["name"]
    found: Object = next(each for each in pod["volumes"] if each["name"] == name)
    return found
