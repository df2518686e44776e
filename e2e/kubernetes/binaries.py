"""The programs of a Kubernetes, built from its Go modules and kept: components, sidecars."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess

SOURCES = pathlib.Path(__file__).resolve().parent
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
SIDECARS = {
    "csi-provisioner": "github.com/kubernetes-csi/external-provisioner/v6",
    "csi-attacher": "github.com/kubernetes-csi/external-attacher/v4",
    "csi-resizer": "github.com/kubernetes-csi/external-resizer/v2",
}
_GO = str(SOURCES.parents[1] / ".venv/go")
"""The toolchain that `e2e/setup` found or installed."""

_NO_DEBUG = "-gcflags=all=-dwarf=false"
"""Debug information would take a tenth of the time and a sixth of the cache."""


def cache_folder() -> pathlib.Path:
    """Where builds are kept: `$WAYMARK_CACHE`, else `waymark` in the user's cache folder."""
    given = os.environ.get("WAYMARK_CACHE")
    if given:
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "waymark"


def build() -> pathlib.Path:
    """Build what is missing or older than its sources; the folder with all programs."""
    folder = cache_folder() / f"bin-{_fingerprint()}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    version = _go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
    linked = " ".join(
        f"-X {package}.gitVersion={version}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    )
    flags = ("-trimpath", f"-ldflags=-s -w {linked}", _NO_DEBUG)
    _go("build", *flags, "-o", str(folder / "kube"), "./kube")
    for component in COMPONENTS:
        link = folder / component
        link.unlink(missing_ok=True)
        link.symlink_to("kube")
    _go("build", *flags, "-o", f"{folder}/", *(f"{module}/cmd/{name}" for name, module in SIDECARS.items()))
    (folder / "done").touch()
    return folder


def module_folder(module: str) -> pathlib.Path:
    """Where the sources of a module lie."""
    return pathlib.Path(_go("list", "-m", "-f", "{{.Dir}}", module).strip())


def _fingerprint() -> str:
    sources = [SOURCES / "go.mod", SOURCES / "go.sum", SOURCES / "kube" / "main.go"]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _go(*words: str) -> str:
    environment = {"CGO_ENABLED": "0", "GOGC": "400", **os.environ}
    done = subprocess.run(
        [_GO if pathlib.Path(_GO).exists() else "go", *words],
        cwd=SOURCES,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout
