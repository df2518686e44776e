"""What requests and classes may say: paths, mkfs options, monitors; and the rows of the mount table."""

from __future__ import annotations

import pathlib

import pytest

from csi.node.mkfs_options import mkfs_options
from csi.node.mount_table import parse_row
from csi.node.paths import check_path
from csi.node.storage_daemon import monitor_addresses
from executor.errors import InvalidError


class TestPaths:
    def test_a_path_below_the_kubelet_is_taken(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "pods").mkdir()
        for path in (tmp_path / "pods", tmp_path / "pods" / "new" / "mount"):
            assert check_path(str(path), str(tmp_path), "target_path") == str(path)

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            pytest.param("", "missing", id="empty"),
            pytest.param("pods/x", "not an absolute path", id="relative"),
            pytest.param("{root}/../x", "not an absolute path", id="dotdot"),
            pytest.param("{root}/pods/../../x", "not an absolute path", id="dotdot inside"),
            pytest.param("{root}//pods", "not an absolute path", id="doubled"),
            pytest.param("/{root}/pods", "not an absolute path", id="doubled at the start"),
            pytest.param("{root}/pods/", "not an absolute path", id="slash at the end"),
            pytest.param("{root}/./pods", "not an absolute path", id="dot"),
            pytest.param("{root}", "outside", id="the tree itself"),
            pytest.param("{root}x/pods", "outside", id="a neighbour with the same beginning"),
            pytest.param("/etc", "outside", id="elsewhere"),
            pytest.param("{root}/a\nb", "control character", id="newline"),
            pytest.param("{root}/a\0b", "control character", id="NUL"),
            pytest.param("{root}/" + "x" * 256, "component longer", id="long name"),
            pytest.param("{root}" + "/x" * 2100, "longer than", id="long path"),
        ],
    )
    def test_any_other_is_refused_and_told_why(self, tmp_path: pathlib.Path, path: str, reason: str) -> None:
        with pytest.raises(InvalidError, match=reason) as caught:
            check_path(path.format(root=tmp_path), str(tmp_path), "staging_target_path")
        assert str(caught.value).startswith("staging_target_path")
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize("below", ["link", "link/mount", "folder/link", "folder/link/a/b"])
    def test_symlinks_below_the_kubelet_are_not_followed(self, tmp_path: pathlib.Path, below: str) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("/etc")
        (tmp_path / "folder" / "link").symlink_to("nowhere")
        with pytest.raises(InvalidError, match="symlink"):
            check_path(str(tmp_path / below), str(tmp_path), "target_path")

    def test_the_kubelets_own_directory_may_be_a_symlink(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "kubelet").symlink_to(tmp_path / "real")
        path = str(tmp_path / "kubelet" / "pods")
        assert check_path(path, str(tmp_path / "kubelet"), "target_path") == path

    def test_a_file_is_no_way_through(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidError, match="not a directory"):
            check_path(str(tmp_path / "file" / "mount"), str(tmp_path), "target_path")


class TestMkfsOptions:
    def test_nothing_given_means_the_defaults(self) -> None:
        assert "-m0" in mkfs_options("ext4", "")
        assert mkfs_options("xfs", "  ") == ("-K",)

    @pytest.mark.parametrize(
        ("fs_type", "given", "words"),
        [
            ("ext4", "-m0 -E nodiscard,lazy_itable_init=1", ("-m0", "-E", "nodiscard,lazy_itable_init=1")),
            ("ext4", "-L 'a b' -qv -O ^has_journal", ("-L", "a b", "-qv", "-O", "^has_journal")),
            ("ext4", "-qm1", ("-qm1",)),
            ("ext4", "-J size=16", ("-J", "size=16")),
            ("xfs", "-K -m reflink=1 -l size=16m", ("-K", "-m", "reflink=1", "-l", "size=16m")),
        ],
    )
    def test_options_that_shape_the_file_system_are_taken(
        self, fs_type: str, given: str, words: tuple[str, ...]
    ) -> None:
        assert mkfs_options(fs_type, given) == words

    @pytest.mark.parametrize(
        ("fs_type", "given", "named"),
        [
            ("ext4", "-J device=/dev/sda", "-J device"),
            ("ext4", "-Jsize=4,device=/dev/sda", "-J device"),
            ("ext4", "-O journal_dev", "-O journal_dev"),
            ("ext4", "-E offset=4096", "-E offset"),
            ("ext4", "/dev/sda", "'/dev/sda'"),
            ("ext4", "-m0 -- /dev/sda", "'--'"),
            ("ext4", "-m0 1000", "'1000'"),
            ("ext4", "-F", "-F"),
            ("ext4", "-n", "-n"),
            ("ext4", "-S", "-S"),
            ("ext4", "-qd /etc", "-d"),
            ("ext4", "-l /etc/passwd", "-l"),
            ("ext4", "-z /tmp/undo", "-z"),
            ("ext4", "-b", "-b"),
            ("ext4", "-L 'open", "open"),
            ("xfs", "-f", "-f"),
            ("xfs", "-d file,name=/tmp/x", "-d file"),
            ("xfs", "-l logdev=/dev/sda", "-l logdev"),
            ("xfs", "-r rtdev=/dev/sda", "-r"),
            ("xfs", "-p /etc/passwd", "-p"),
            ("btrfs", "", "btrfs"),
        ],
    )
    def test_others_are_refused_by_name(self, fs_type: str, given: str, named: str) -> None:
        with pytest.raises(InvalidError, match=named):
            mkfs_options(fs_type, given)


class TestMonitors:
    @pytest.mark.parametrize(
        ("monitors", "addresses"),
        [
            (["10.0.0.1:6789"], [("10.0.0.1", "6789")]),
            (["[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]"], [("10.0.0.1", "3300"), ("10.0.0.1", "6789")]),
            (["v2:10.0.0.1:3300/0", "mon-b:3301"], [("10.0.0.1", "3300"), ("mon-b", "3301")]),
            (["10.0.0.1:1,10.0.0.2:2"], [("10.0.0.1", "1"), ("10.0.0.2", "2")]),
            (["mon-a"], [("mon-a", "3300"), ("mon-a", "6789")]),
            (["[fd00::1]:6789"], [("fd00::1", "6789")]),
            (["[v2:[fd00::1]:3300/0]"], [("fd00::1", "3300")]),
        ],
    )
    def test_every_form_of_an_address_is_read(
        self, monitors: list[str], addresses: list[tuple[str, str]]
    ) -> None:
        assert monitor_addresses(monitors) == addresses

    @pytest.mark.parametrize("monitor", ["", "a:b", "[v2:10.0.0.1", "10.0.0.1:6789:1"])
    def test_one_that_cannot_be_read_is_named(self, monitor: str) -> None:
        with pytest.raises(InvalidError, match="monitor address"):
            monitor_addresses([monitor])


class TestMountTable:
    def test_escapes_and_optional_fields(self) -> None:
        row = r"36 35 98:0 /mnt1 /a\040b\134c\011d\012e rw,noatime shared:1 master:2 - "
        row += r"ext4 /dev/r\040t rw,errors=continue"
        mount = parse_row(row)
        assert (mount.target, mount.source, mount.root) == ("/a b\\c\td\ne", "/dev/r t", "/mnt1")
        assert mount.options == {"rw", "noatime", "errors=continue"}
        assert mount.device_number == "98:0"

    def test_a_read_only_bind_of_a_writable_file_system_is_read_only(self) -> None:
        assert parse_row("36 35 7:0 / /m ro,relatime - xfs /dev/loop0 rw").options == {"ro", "relatime"}

    def test_an_empty_source_is_read(self) -> None:
        assert parse_row("36 35 0:5 / /m rw - tmpfs  rw").fs_type == "tmpfs"
