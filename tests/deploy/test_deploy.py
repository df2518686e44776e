"""What is shipped agrees with what it is tested with, and with the driver itself."""

from __future__ import annotations

import re

import pytest

from csi import clusters, parameters
from csi.cli.arguments import parser, to_settings
from csi.identities import USER_ID, USER_KEY
from csi.settings import DEFAULT_CONFIG, DEFAULT_DRIVER_NAME, Settings
from e2e.kubernetes import images
from e2e.kubernetes.binaries import SIDECARS, SOURCES
from tests.deploy.manifests import (
    CONTROLLER,
    DEPLOY,
    NODE,
    OVERLAYS,
    PODS,
    Object,
    base,
    documents,
    driver,
    patches,
    volume,
)

PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)

RIGHTS = {
    # (group, resource): verbs, and whose they are
    ("", "persistentvolumes"): "create delete list patch watch",  # provisioner; resizer; attacher watches
    ("", "persistentvolumeclaims"): "list watch",  # provisioner, resizer
    ("", "persistentvolumeclaims/status"): "patch",  # resizer
    ("", "events"): "create patch",  # provisioner, resizer
    ("", "secrets"): "get",  # the user and key of a StorageClass
    ("storage.k8s.io", "storageclasses"): "list watch",  # provisioner
    ("storage.k8s.io", "volumeattachments"): "list watch",  # attacher
    ("storage.k8s.io", "volumeattachments/status"): "patch",  # attacher
}
OWN_RIGHTS = {("coordination.k8s.io", "leases"): "create get update"}  # each sidecar's election


# Versions


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_is_shipped_in_the_version_that_is_tested(name: str) -> None:
    module = (SOURCES / "go.mod").read_text()
    found = re.search(rf"{re.escape(SIDECARS[name])} (v\S+)", module)
    assert found is not None
    assert images.sidecar_image(name) == f"registry.k8s.io/sig-storage/{name}:{found[1]}"


def test_the_image_has_the_locked_packages() -> None:
    tested = dict(PIN.findall((DEPLOY.parent / "e2e/requirements.lock").read_text()))
    shipped = dict(PIN.findall((DEPLOY / "requirements.lock").read_text()))
    assert shipped
    assert shipped.items() <= tested.items()


def test_the_image_is_built_on_the_base_that_is_tested() -> None:
    used = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert set(used) == {images.BASE}


def test_images_and_their_versions_are_named_in_one_place() -> None:
    named = {each["name"]: each for each in documents("base/kustomization.yaml")[0]["images"]}
    used = {container["image"] for pod in PODS.values() for container in pod["containers"]}
    assert used == set(named)
    assert f"{named['waymark']['newName']}:{named['waymark']['newTag']}" == images.DRIVER
    for overlay in OVERLAYS:
        assert (
            "image" not in (DEPLOY / f"overlays/{overlay}/kustomization.yaml").read_text().split("patches")[1]
        )


# The driver's arguments and what it finds under the paths in them


def settings_of(pod: Object, *more: str) -> Settings:
    return to_settings(parser().parse_args([*driver(pod)["args"], *more]))


def test_the_controller_keeps_its_state_as_long_as_its_pod() -> None:
    settings = settings_of(CONTROLLER)
    assert settings.controller
    assert not settings.node
    assert volume(CONTROLLER, str(settings.state_dir))["emptyDir"] == {}
    assert volume(CONTROLLER, str(settings.socket))["emptyDir"] == {"medium": "Memory"}
    assert volume(CONTROLLER, str(settings.run_dir))["emptyDir"] == {"medium": "Memory"}
    assert volume(CONTROLLER, str(settings.keys))["secret"]["optional"]


def test_the_node_keeps_lock_journal_and_keys_beyond_its_pod() -> None:
    settings = settings_of(NODE)
    assert settings.node
    assert not settings.controller
    plugin = f"{settings.kubelet_dir}/plugins/{DEFAULT_DRIVER_NAME}"
    assert str(settings.socket) == f"{plugin}/csi.sock"
    assert str(settings.registration_dir) == f"{settings.kubelet_dir}/plugins_registry"
    # kubelet looks for the sockets on the host: the path must be the same on both sides.
    for path in (settings.socket.parent, settings.registration_dir, settings.state_dir, settings.run_dir):
        found = volume(NODE, str(path))["hostPath"]["path"]
        assert str(path).startswith(found)
        assert found in {mount["mountPath"] for mount in driver(NODE)["volumeMounts"]}
    assert str(settings.run_dir).startswith("/run/"), "keys lie on the host's tmpfs"


@pytest.mark.parametrize("kind", PODS)
def test_config_json_is_where_the_driver_looks(kind: str) -> None:
    assert settings_of(PODS[kind]).config == DEFAULT_CONFIG
    assert volume(PODS[kind], str(DEFAULT_CONFIG))["configMap"] == {"name": "ceph-csi-config"}


def test_mounts_of_the_node_are_seen_by_the_host() -> None:
    shared = {
        mount["mountPath"]
        for mount in driver(NODE)["volumeMounts"]
        if mount.get("mountPropagation") == "Bidirectional"
    }
    assert shared == {"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins/kubernetes.io"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_patches_what_is_there(overlay: str) -> None:
    """A misspelled name in a patch would add a volume instead of changing it."""
    for kind, patch in patches(overlay):
        if isinstance(patch, list):
            added = [each["value"] for each in patch if each["path"].endswith("/containers/0/args/-")]
            settings_of(PODS[kind], *added)
        elif kind in PODS:
            volumes = {each["name"] for each in PODS[kind]["volumes"]}
            changed = patch["spec"]["template"]["spec"].get("volumes", [])
            assert {each["name"] for each in changed} <= volumes


# Health


def test_each_container_has_a_port_and_a_probe_of_its_own() -> None:
    ports = {}
    for container in CONTROLLER["containers"]:
        probe = container["livenessProbe"]["httpGet"]
        (port,) = container["ports"]
        assert probe["port"] == port["name"]
        ports[container["name"]] = port["containerPort"]
        if container["name"] == "driver":
            assert probe["path"] == "/healthz"
            assert settings_of(CONTROLLER).health_address == ("", port["containerPort"])
        else:
            assert probe["path"] == "/healthz/leader-election"
            assert f"--http-endpoint=:{port['containerPort']}" in container["args"]
            assert "--leader-election" in container["args"]
    node = driver(NODE)["livenessProbe"]["httpGet"]
    assert settings_of(NODE).health_address == (node["host"], node["port"])
    # In the host's network, where the lab has the controller too, one port serves one container.
    ports["node"] = node["port"]
    assert len(set(ports.values())) == len(ports)


@pytest.mark.parametrize("kind", PODS)
def test_a_probe_is_given_the_time_that_the_driver_takes_for_it(kind: str) -> None:
    assert driver(PODS[kind])["livenessProbe"]["timeoutSeconds"] > 3


# Rights


def rights(role: Object) -> dict[tuple[str, str], str]:
    return {
        (group, resource): " ".join(sorted(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_sidecars_may_do_what_they_do_and_no_more() -> None:
    assert rights(base("ClusterRole")) == RIGHTS
    assert rights(base("Role")) == OWN_RIGHTS
    for binding in ("ClusterRoleBinding", "RoleBinding"):
        assert [each["name"] for each in base(binding)["subjects"]] == [CONTROLLER["serviceAccountName"]]


def test_the_node_has_nothing_to_ask_the_api_server() -> None:
    assert NODE["automountServiceAccountToken"] is False
    assert NODE["serviceAccountName"] != CONTROLLER["serviceAccountName"]
    assert base("ServiceAccount", NODE["serviceAccountName"])["automountServiceAccountToken"] is False


def test_the_controller_is_nobody() -> None:
    assert CONTROLLER["securityContext"]["runAsNonRoot"]
    assert "hostNetwork" not in CONTROLLER
    for container in CONTROLLER["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    user = CONTROLLER["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}\n" in (DEPLOY / "Dockerfile").read_text()


# What users apply


CLASSES = ["examples/storageclass.yaml", "overlays/rook/storageclass.yaml"]


def test_the_drivers_name_is_one() -> None:
    assert base("CSIDriver")["metadata"]["name"] == DEFAULT_DRIVER_NAME
    for path in CLASSES:
        assert documents(path)[0]["provisioner"] == DEFAULT_DRIVER_NAME


@pytest.mark.parametrize("path", CLASSES)
def test_a_storage_class_is_one_that_the_driver_takes(path: str) -> None:
    given = documents(path)[0]
    assert parameters.parse(given["parameters"]).fs_type == "ext4"
    assert given["allowVolumeExpansion"]


def test_the_examples_fit_together() -> None:
    (secret,) = documents("examples/secret.yaml")
    (storage_class,) = documents("examples/storageclass.yaml")
    assert set(secret["stringData"]) == {USER_ID, USER_KEY}
    for use in ("provisioner", "controller-expand", "node-stage"):
        named = [storage_class["parameters"][f"csi.storage.k8s.io/{use}-secret-{key}"] for key in KEYS]
        assert named == [secret["metadata"][key] for key in KEYS]
    for claim_path, pod_path in (("pvc", "pod"), ("block-pvc", "block-pod")):
        (claim,), (pod,) = documents(f"examples/{claim_path}.yaml"), documents(f"examples/{pod_path}.yaml")
        assert claim["spec"]["storageClassName"] == storage_class["metadata"]["name"]
        (used,) = pod["spec"]["volumes"]
        assert used["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert [container["image"] for container in pod["spec"]["containers"]] == [images.BUSYBOX]


KEYS = ("name", "namespace")

ROOK_CONFIG = b"""[{"clusterID":"rook-ceph","monitors":["10.96.10.1:6789","10.96.10.2:3300"],
"cephFS":{"netNamespaceFilePath":"","subvolumeGroup":"","kernelMountOptions":"","fuseMountOptions":""},
"rbd":{"netNamespaceFilePath":"","radosNamespace":"","mirrorDaemonCount":0},"nfs":{"netNamespaceFilePath":""},
"readAffinity":{"enabled":false,"crushLocationLabels":null},"namespace":"rook-ceph"}]"""
"""As Rook writes it."""


def test_rook_is_used_as_it_is() -> None:
    (storage_class,) = documents("overlays/rook/storageclass.yaml")
    cluster_id = storage_class["parameters"]["clusterID"]
    (config,) = clusters.parse(ROOK_CONFIG, "Rook's").values()
    assert (config.cluster_id, config.namespace) == (cluster_id, "")
    changed = {
        (kind, each["name"]): each
        for kind, patch in patches("rook")
        if kind in PODS
        for each in patch["spec"]["template"]["spec"]["volumes"]
    }
    for kind in PODS:
        assert changed[kind, "config"]["configMap"] == {
            "name": "rook-ceph-csi-config",
            "items": [{"key": "csi-cluster-config-json", "path": DEFAULT_CONFIG.name}],
        }
    assert changed["Deployment", "keys"]["secret"] == {
        "secretName": storage_class["parameters"]["csi.storage.k8s.io/provisioner-secret-name"],
        "items": [{"key": key, "path": f"{cluster_id}/{key}"} for key in (USER_ID, USER_KEY)],
    }
