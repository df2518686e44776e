"""What is shipped agrees with what it is tested with."""

from __future__ import annotations

import pathlib
import re

import pytest

from csi.cli.arguments import parser, to_settings
from e2e.kubernetes.binaries import SIDECARS, SOURCES
from e2e.kubernetes.images import DRIVER, sidecar_image

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_is_shipped_in_the_version_that_is_tested(name: str) -> None:
    module = (SOURCES / "go.mod").read_text()
    found = re.search(rf"{re.escape(SIDECARS[name])} (v\S+)", module)
    assert found is not None
    assert sidecar_image(name) == f"registry.k8s.io/sig-storage/{name}:{found[1]}"


def test_the_image_has_the_locked_packages() -> None:
    tested = dict(PIN.findall((DEPLOY.parent / "e2e/requirements.lock").read_text()))
    shipped = dict(PIN.findall((DEPLOY / "requirements.lock").read_text()))
    assert shipped
    assert shipped.items() <= tested.items()


def test_images_are_named_in_one_place() -> None:
    text = (DEPLOY / "base/kustomization.yaml").read_text()
    named = set(re.findall(r"^  - name: (\S+)$", text, re.MULTILINE))
    for file in ("controller.yaml", "node.yaml"):
        used = re.findall(r"^\s+image: (\S+)$", (DEPLOY / "base" / file).read_text(), re.MULTILINE)
        assert used
        assert set(used) <= named
    assert f"newName: {DRIVER.partition(':')[0]}" in text


@pytest.mark.parametrize(("file", "flag"), [("controller.yaml", "--controller"), ("node.yaml", "--node")])
def test_the_driver_takes_its_arguments(file: str, flag: str) -> None:
    lines = (DEPLOY / "base" / file).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.strip() == "- serve")
    words = []
    for line in lines[begin:]:
        if not line.strip().startswith("- "):
            break
        words.append(line.strip().removeprefix("- "))
    settings = to_settings(parser().parse_args(words))
    assert flag in words
    assert settings.health_address is not None
    assert settings.node == (file == "node.yaml") == (settings.registration_dir is not None)


@pytest.mark.parametrize("overlay", ["lab", "kind", "rook"])
def test_overlays_change_the_volumes_that_they_mean(overlay: str) -> None:
    """A patch counts volumes, so the base may not move them."""
    text = (DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text()
    for kind, file in (("Deployment", "controller.yaml"), ("DaemonSet", "node.yaml")):
        base = (DEPLOY / "base" / file).read_text().partition("      volumes:\n")[2]
        volumes = re.findall(r"^        - name: (\S+)$", base, re.MULTILINE)
        patch = text.partition(f"kind: {kind}")[2].partition("  - target")[0]
        for number, source in re.findall(r"/volumes/(\d+)/(\S+)", patch):
            wanted = {"configMap": "config", "secret": "keys"}[source]
            assert volumes[int(number)] == wanted, f"{overlay} of {kind}"
