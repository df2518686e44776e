"""Ending a test bed: processes, mounts, loop devices, mapped images, cluster, files, in the order that works.

Everything is found by what lies in the folder, not by what `up` believes it has made, so that a half-finished
`up`, a killed plugin and an earlier, interrupted `down` are all cleaned up after. Nothing outside the folder
is touched.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal

from e2e.harness import kernel, processes
from e2e.harness.testbed import STOP_SECONDS, Testbed, TestbedError

_MAPPER = "qemu-storage-daemon"
_MAPPER_SECONDS = 5.0
_OWN_FILES = ("env", "parameters.json", "secrets.json", "config.json", "testbed.json")
_OWN_FOLDERS = ("ceph", "keys", "kubelet", "log", "run", "state")


def down(testbed: Testbed) -> None:
    """End all that belongs to the test bed. Raises TestbedError naming what could not be removed."""
    folder = testbed.folder
    # A stopped OSD or mapper would hang the unmounts below.
    testbed.ceph.resume()
    _continue(folder)
    # Plugins first, so that nobody mounts anew what is being unmounted; then the children they left.
    names = {path.stem for path in folder.glob("*.pid")}
    processes.end([pid for name in names if (pid := testbed.pid(name))], patience_seconds=STOP_SECONDS)
    processes.end(_pids(folder, mappers=False), patience_seconds=1.0)
    volumes = [mount.target for mount in kernel.mounts_under(folder) if not mount.fs_type.startswith("fuse")]
    clean = all(kernel.unmount(target) for target in reversed(volumes))
    clean = all(kernel.detach(loop) for loop in kernel.loops_under(folder)) and clean
    clean = all(kernel.unmap_rbd(device) for device in _mapped(folder)) and clean
    # A mapper that ends cleanly takes its FUSE mount away itself, once no loop device uses the file. Without
    # a cluster it cannot end so, nor can an unmount: killing it turns what they wait for into an I/O error.
    processes.end(_pids(folder, mappers=True), patience_seconds=_MAPPER_SECONDS if clean else 0.0)
    processes.end(_pids(folder, mappers=False), patience_seconds=_MAPPER_SECONDS)
    for mount in reversed(kernel.mounts_under(folder)):
        if not kernel.unmount(mount.target):
            kernel.unmount(mount.target, lazily=True)
    for loop in kernel.loops_under(folder):
        kernel.detach(loop)
    for device in _mapped(folder):
        kernel.unmap_rbd(device)
    testbed.reap()
    _refuse_remains(folder)
    testbed.ceph.destroy()
    _remove_files(folder)


def _refuse_remains(folder: pathlib.Path) -> None:
    """Stop before files are removed through a mount that is still there."""
    remains = [f"mount {mount.target}" for mount in kernel.mounts_under(folder)]
    remains += [f"{loop} on {file}" for loop, file in kernel.loops_under(folder).items()]
    remains += [f"{device} of {_mapped(folder)[device]}" for device in _mapped(folder)]
    remains += [f"{process.program} (pid {process.pid})" for process in processes.of_folder(folder)]
    if remains:
        raise TestbedError(f"{folder} still holds {', '.join(remains)}; the cluster was left running")


def _mapped(folder: pathlib.Path) -> dict[str, str]:
    """Devices that the kernel's RBD driver has for volumes of this test bed."""
    ours = {path.stem for path in (folder / "run" / "krbd").glob("*")}
    return {device: volume for device, volume in kernel.rbd_maps().items() if volume in ours}


def _remove_files(folder: pathlib.Path) -> None:
    """Remove what `up` and the plugins made; the folder itself only if nothing else is in it."""
    for name in _OWN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in [folder / name for name in _OWN_FILES] + [*folder.glob("*.pid"), *folder.glob("*.socket")]:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _continue(folder: pathlib.Path) -> None:
    for process in processes.of_folder(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


def _pids(folder: pathlib.Path, *, mappers: bool) -> list[int]:
    return [p.pid for p in processes.of_folder(folder) if (p.program == _MAPPER) is mappers]
