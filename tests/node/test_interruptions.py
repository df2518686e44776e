"""A plugin that dies before or after any of its commands on the real host, and the next one that goes on."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from csi.node import mount_table
from csi.node.mkfs_options import mkfs_options
from csi.node.ports import Content, MapTarget
from csi.node.run import Completed, Runner
from omap.faults import Crash

if TYPE_CHECKING:
    from tests.node.conftest import HostBench

pytestmark = pytest.mark.ceph

_STAGE_COMMANDS = 13
_UNSTAGE_COMMANDS = 4


class MortalRunner(Runner):
    """Ends the plugin before or after its n-th command; `ran` holds the names of those that ran."""

    def __init__(self, number: int, *, after: bool) -> None:
        super().__init__(None)
        self._number = number
        self._after = after
        self.ran: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        stdin: bytes | None = None,
        touches_device: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> Completed:
        return self._mortal(
            lambda: super(MortalRunner, self).run(
                argv, timeout=timeout, stdin=stdin, touches_device=touches_device, pass_fds=pass_fds
            ),
            argv[0],
        )

    def start_daemon(self, argv: Sequence[str], *, timeout: float, pass_fds: Sequence[int] = ()) -> Completed:
        return self._mortal(
            lambda: super(MortalRunner, self).start_daemon(argv, timeout=timeout, pass_fds=pass_fds), argv[0]
        )

    def _mortal(self, run: Callable[[], Completed], name: str) -> Completed:
        last = len(self.ran) + 1 == self._number
        if last and not self._after:
            raise Crash(f"before {name}")
        done = run()
        self.ran.append(name)
        if last:
            raise Crash(f"after {name}")
        return done


def stage(host: HostBench, target: MapTarget) -> None:
    """Each step after a look, as the operations do it."""
    kubelet = host.kubelet
    device = host.mapper.find(target.volume) or host.mapper.map(target, host.credentials)
    if host.file_systems.detect(device.path).content is Content.EMPTY:
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
    host.mounts.mount(device.path, str(kubelet / "staging"), "ext4", [])
    host.mounts.bind(str(kubelet / "staging"), str(kubelet / "mount"), read_only=True, is_device=False)
    host.mounts.bind(device.path, str(kubelet / "block"), read_only=False, is_device=True)


def unstage(host: HostBench, target: MapTarget) -> None:
    for name in ("block", "mount", "staging"):
        host.mounts.unmount(str(host.kubelet / name))
    host.mapper.unmap(target.volume)


def is_staged(host: HostBench, target: MapTarget) -> bool:
    device = host.mapper.find(target.volume)
    assert device is not None
    mounts = {pathlib.Path(mount.target).name: mount for mount in host.mounts.of_device(device.path)}
    assert set(mounts) == {"staging", "mount", "block"}
    assert len(host.mounts.of_device(device.path)) == len(mounts)
    return "ro" in mounts["mount"].options and "rw" in mounts["staging"].options


def is_unstaged(host: HostBench, target: MapTarget) -> bool:
    assert not host.daemons(target.volume)
    assert not (host.run_dir / "maps" / target.volume).exists()
    assert list(host.kubelet.iterdir()) == []
    return not [mount for mount in mount_table.mount_table() if mount.target.startswith(f"{host.root}/")]


def test_the_commands_are_as_many_as_are_interrupted_below(host: HostBench) -> None:
    target = host.target()
    for work, commands in ((stage, _STAGE_COMMANDS), (unstage, _UNSTAGE_COMMANDS)):
        runner = MortalRunner(0, after=False)
        host.restart(runner)
        work(host, target)
        assert len(runner.ran) == commands, runner.ran


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, _STAGE_COMMANDS + 1))
def test_staging_is_completed_by_the_next_plugin(host: HostBench, number: int, after: bool) -> None:
    target = host.target()
    host.restart(MortalRunner(number, after=after))
    with pytest.raises(Crash):
        stage(host, target)
    host.restart()
    stage(host, target)
    assert is_staged(host, target)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, _STAGE_COMMANDS + 1, 2))
def test_half_of_staging_is_taken_away_by_the_next_plugin(host: HostBench, number: int, after: bool) -> None:
    target = host.target()
    host.restart(MortalRunner(number, after=after))
    with pytest.raises(Crash):
        stage(host, target)
    host.restart()
    unstage(host, target)
    assert is_unstaged(host, target)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, _UNSTAGE_COMMANDS + 1))
def test_unstaging_is_completed_by_the_next_plugin(host: HostBench, number: int, after: bool) -> None:
    target = host.target()
    stage(host, target)
    host.restart(MortalRunner(number, after=after))
    with pytest.raises(Crash):
        unstage(host, target)
    host.restart()
    unstage(host, target)
    assert is_unstaged(host, target)
