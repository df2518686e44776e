"""Container images, made here, and the disk on which every node finds them.

The driver's image is built from `deploy/Dockerfile`.  No image can be pulled, so its base is made of Debian's
packages under the base's name, and each sidecar's of its binary, under the name and tag that the YAML has.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence

from e2e.harness.testbed import ROOT
from e2e.kubernetes import binaries

BASE = "docker.io/library/debian:12-slim"
DRIVER = "ghcr.io/waymark/waymark:dev"
PAUSE = "registry.k8s.io/pause:3.10"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
DISK_SIZE = "8G"
_HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs")
"""How this machine reaches PyPI; lent to the build and in no layer."""


def node_disk(programs: pathlib.Path) -> pathlib.Path:
    """The disk with all images imported, made anew when one of them changed."""
    folder = binaries.cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    archives = [_driver(folder), *_sidecars(folder, programs), _pause(folder), _busybox(folder)]
    mark = hashlib.sha256(
        "\n".join(f"{path.name} {path.stat().st_mtime_ns}" for path in archives).encode()
    ).hexdigest()[:12]
    disk = binaries.cache_folder() / f"node-{mark}.img"
    if not disk.exists():
        for old in binaries.cache_folder().glob("node-*.img"):
            old.unlink()
        _pack(archives, disk)
    return disk


def sidecar_image(name: str) -> str:
    """Name and tag under which the YAML has a sidecar."""
    text = (ROOT / "deploy/base/kustomization.yaml").read_text()
    after = text.partition(f"name: {name}\n")[2].splitlines()
    return f"{after[0].split()[1]}:{after[1].split()[1]}"


# The driver


def _driver(folder: pathlib.Path) -> pathlib.Path:
    """Build `deploy/Dockerfile`, if what goes into it changed."""
    archive, mark = folder / "waymark.tar", folder / "waymark.sources"
    sources = _fingerprint()
    if archive.exists() and mark.exists() and mark.read_text() == sources:
        return archive
    storage = binaries.cache_folder() / "buildah"
    buildah = ["buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")]
    environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def run(*words: str) -> str:
        return subprocess.run(
            [*buildah, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()

    if BASE not in run("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        with tempfile.TemporaryDirectory() as scratch:
            base = pathlib.Path(scratch) / "base.tar"
            _debian(base)
            container = run("from", "scratch")
            run("add", container, str(base), "/")
            run("commit", "--rm", container, BASE)
    lent = [f"--volume={path}:{path}:ro" for path in _HOST_FILES if pathlib.Path(path).exists()]
    run("build", "--file", "deploy/Dockerfile", "--pull=never", *lent, "--tag", DRIVER, ".")
    archive.unlink(missing_ok=True)
    run("push", DRIVER, f"docker-archive:{archive}:{DRIVER}")
    run("rmi", DRIVER)
    mark.write_text(sources)
    return archive


def _debian(archive: pathlib.Path) -> None:
    """Make what the base's image holds, of the packages that this machine is set up for."""
    sources = sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"))
    lists = [str(path) for path in sources] or ["/etc/apt/sources.list"]
    options = [
        f"--setup-hook=copy-in {path} /etc/apt/apt.conf.d"
        for path in sorted(pathlib.Path("/etc/apt/apt.conf.d").glob("99*"))
    ]
    # The certificates are there from the start, since the folder of this machine's own is lent over them.
    words = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", *options]
    subprocess.run([*words, "bookworm", str(archive), *lists], check=True)


def _fingerprint() -> str:
    """Of all that the Dockerfile copies."""
    digest = hashlib.sha256()
    for top in ("csi", "executor", "omap", "proto", "deploy/Dockerfile", "deploy/requirements.lock"):
        path = ROOT / top
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")) + sorted(path.rglob("*.proto")):
            if "_pb2" not in file.name:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


# The others


def _sidecars(folder: pathlib.Path, programs: pathlib.Path) -> list[pathlib.Path]:
    return [
        _image(folder, sidecar_image(name), {f"/{name}": programs / name}, [f"/{name}"])
        for name in binaries.SIDECARS
    ]


def _pause(folder: pathlib.Path) -> pathlib.Path:
    source = binaries.module_folder("k8s.io/kubernetes") / "build/pause/linux/pause.c"
    program = folder / "pause"
    if not program.exists():
        subprocess.run(["gcc", "-Os", "-static", "-s", "-DVERSION=3.10", "-o", program, source], check=True)
    return _image(folder, PAUSE, {"/pause": program}, ["/pause"])


def _busybox(folder: pathlib.Path) -> pathlib.Path:
    program = pathlib.Path("/bin/busybox")
    applets = subprocess.run(
        [program, "--list"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    return _image(folder, BUSYBOX, {"/bin/busybox": program}, None, applets=applets)


def _image(
    folder: pathlib.Path,
    name: str,
    files: dict[str, pathlib.Path],
    entrypoint: Sequence[str] | None,
    *,
    applets: Sequence[str] = (),
) -> pathlib.Path:
    """Pack files as an archive of one image, as `docker save` writes it; once, until a file is newer."""
    archive = folder / f"{name.replace('/', '_').replace(':', '_')}.tar"
    if archive.exists() and all(archive.stat().st_mtime > file.stat().st_mtime for file in files.values()):
        return archive
    with tempfile.TemporaryDirectory() as scratch:
        layer = pathlib.Path(scratch) / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            for path in ("bin", "tmp", "etc", "root"):
                info = tarfile.TarInfo(path)
                info.type, info.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
                tar.addfile(info)
            for path, file in files.items():
                info = tar.gettarinfo(file, arcname=path.lstrip("/"))
                info.type, info.mode, info.uid, info.gid = tarfile.REGTYPE, 0o755, 0, 0
                info.size, info.linkname = file.stat().st_size, ""
                with file.open("rb") as stream:
                    tar.addfile(info, stream)
            for applet in applets:
                if applet != "busybox":
                    info = tarfile.TarInfo(f"bin/{applet}")
                    info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                    tar.addfile(info)
        digest = hashlib.sha256(layer.read_bytes()).hexdigest()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin:/"], "Entrypoint": entrypoint},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        for file_name, document in (("config.json", config), ("manifest.json", manifest)):
            (pathlib.Path(scratch) / file_name).write_text(json.dumps(document))
        with tarfile.open(archive, "w") as tar:
            for member in ("manifest.json", "config.json", "layer.tar"):
                tar.add(pathlib.Path(scratch) / member, arcname=member)
    return archive


def _pack(archives: Sequence[pathlib.Path], disk: pathlib.Path) -> None:
    """Have containerd import the images here, and make a file system of what it has then."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="waymark-disk-", dir=disk.parent))
    socket = scratch / "sock"
    for name in ("containerd", "kubelet"):
        (scratch / "disk" / name).mkdir(parents=True)
    (scratch / "toml").write_text(
        f'version = 2\nroot = "{scratch}/disk/containerd"\nstate = "{scratch}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\n  address = "{socket}"\n'
    )
    ctr = ["ctr", "--address", str(socket), "--namespace", "k8s.io"]
    with (scratch / "log").open("wb") as log:
        daemon = subprocess.Popen(["containerd", "-c", str(scratch / "toml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"containerd does not answer: {(scratch / 'log').read_text()[-2000:]}")
            time.sleep(0.2)
        for archive in archives:
            subprocess.run([*ctr, "images", "import", str(archive)], stdout=subprocess.DEVNULL, check=True)
    finally:
        daemon.terminate()
        daemon.wait()
    made = scratch / "img"
    make = [
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-m",
        "0",
        "-O",
        "^has_journal",
        "-d",
        str(scratch / "disk"),
        str(made),
    ]
    subprocess.run([*make, DISK_SIZE], check=True)
    subprocess.run(["tune2fs", "-O", "has_journal", str(made)], stdout=subprocess.DEVNULL, check=True)
    made.rename(disk)
    shutil.rmtree(scratch)
