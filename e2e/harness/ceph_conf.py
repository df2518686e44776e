"""The ceph.conf of a micro Ceph: what is set, and why it makes a cluster small and quick to start.

Everything a daemon touches lies in the cluster's own folder; nothing is read from or written to /etc/ceph,
/var/lib/ceph or /var/run/ceph. Only an OSD has an admin socket, whose path may not be longer than 107 bytes.
"""

from __future__ import annotations

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What is chosen when a cluster is made; kept in `DIR/settings.json` for every later command."""

    osds: int = 1
    osd_size_bytes: int = 20 << 30
    port: int = 0
    """First of the 40 ports the daemons use; 0 means a free block chosen at random."""
    address: str = "127.0.0.1"
    msgr1: bool = False
    """Bind the old protocol too, which a plain `rbd map` of the kernel client needs."""
    nosync: bool = False
    """Preload libeatmydata: quicker on a busy disk; kill -9 of a daemon still loses nothing."""
    watch_timeout_seconds: int = 30
    """Until a dead client's watch, and so its exclusive lock, is given up; 30 is Ceph's default."""

    def monitors(self) -> str:
        """The monitor's address, in the form `mon_host` and config.json take."""
        msgr2 = f"v2:{self.address}:{self.port}/0"
        return f"[{msgr2},v1:{self.address}:{self.port + 1}/0]" if self.msgr1 else f"[{msgr2}]"


def render(folder: pathlib.Path, fsid: str, settings: Settings) -> str:
    """Return the text of ceph.conf for the cluster in `folder`."""
    return f"""\
[global]
fsid = {fsid}
mon_host = {settings.monitors()}
keyring = {folder}/$name.keyring
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
public_addr = {settings.address}
cluster_addr = {settings.address}
ms_bind_msgr1 = {str(settings.msgr1).lower()}
ms_bind_port_min = {settings.port + 2}
ms_bind_port_max = {settings.port + 39}
ms_async_op_threads = 2
run_dir = {folder}/run
crash_dir = {folder}/run
admin_socket =
log_file = {folder}/log/$name.log
log_to_stderr = false
err_to_stderr = true
debug_ms = 0/0
setuser_match_path =
# One copy of everything is enough for data that lives for one test run.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
# An OSD that was stopped finds its leases for reading lapsed, and renews them by its peers' answers: alone it
# can wait without end. So the leases outlast every stop (the default is 0.8 of 20 s).
osd_pool_default_read_lease_ratio = 180
osd_crush_chooseleaf_type = 0

[client]
log_file = {folder}/log/client.log
err_to_stderr = false

[mon]
pid_file = {folder}/run/$name.pid
mon_data = {folder}/mon
mon_initial_members = a
mon_cluster_log_file = {folder}/log/cluster.log
mon_allow_pool_delete = true
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 1000
mon_osd_min_up_ratio = 0
mon_memory_autotune = false
auth_allow_insecure_global_id_reclaim = false
# A shared, fairly full disk must not turn into a full cluster.
mon_data_avail_crit = 1
mon_data_avail_warn = 2
mon_osd_full_ratio = 0.97
mon_osd_nearfull_ratio = 0.95
mon_osd_backfillfull_ratio = 0.96
# Each map change waits for one proposal: with the default second, a start takes eight times as long.
paxos_propose_interval = 0.02
paxos_min_wait = 0.01

[osd]
pid_file = {folder}/run/$name.pid
osd_data = {folder}/osd$id
# Its counters are asked for through this, also by way of the network.
admin_socket = {folder}/run/$name.asok
osd_objectstore = bluestore
osd_memory_target = 939524096
osd_max_pg_log_entries = 100
osd_min_pg_log_entries = 50
osd_pg_log_dups_tracked = 100
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
osd_class_load_list = *
osd_class_default_list = *
osd_client_watch_timeout = {settings.watch_timeout_seconds}
osd_mon_shutdown_timeout = 1
bluestore_block_create = true
bluestore_block_size = {settings.osd_size_bytes}
bluestore_block_wal_create = false
bluestore_block_db_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
bluestore_fsck_on_mount = false
bluestore_fsck_on_mkfs = false
# Every close of a block device waits for one poll, a quarter of a second by default.
bdev_aio_poll_ms = 10
"""
