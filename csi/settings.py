"""How one driver process is set up; checked at once at start and never changed after."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass, field

from csi.logs import LEVELS
from executor.context import Periods

DEFAULT_DRIVER_NAME = "rbd.csi.waymark.dev"
DEFAULT_CONFIG = pathlib.Path("/etc/ceph-csi-config/config.json")
DEFAULT_KUBELET_DIR = pathlib.Path("/var/lib/kubelet")
DEFAULT_STORE_TIMEOUT = 30.0
DEFAULT_CONNECT_TIMEOUT = 10.0
DEFAULT_WORKERS = 64
DEFAULT_MAX_CALLS = 128

_MAX_DRIVER_NAME = 63
_DRIVER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)
_MAX_NODE_ID_BYTES = 128


class SettingsError(Exception):
    """A setting is wrong; the text names its flag, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is settable.  Raises SettingsError.

    Times are seconds.  `keys` holds the driver's own identities, one folder a cluster; `run_dir` must not
    outlive a reboot of the host (a tmpfs), `state_dir` must outlive the process.  `workers` is how many
    operations run at a time for one cluster, `max_calls` how many calls may wait for one.  With
    `registration_dir` the node plugin makes itself known to kubelet there; `health_address` is where
    `/healthz` is answered.
    """

    socket: pathlib.Path
    run_dir: pathlib.Path
    state_dir: pathlib.Path
    controller: bool = False
    node: bool = False
    node_id: str = ""
    driver_name: str = DEFAULT_DRIVER_NAME
    config: pathlib.Path = DEFAULT_CONFIG
    keys: pathlib.Path | None = None
    kubelet_dir: pathlib.Path = DEFAULT_KUBELET_DIR
    log_file: pathlib.Path | None = None
    log_level: str = "info"
    periods: Periods = field(default_factory=Periods)
    store_timeout: float = DEFAULT_STORE_TIMEOUT
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT
    workers: int = DEFAULT_WORKERS
    max_calls: int = DEFAULT_MAX_CALLS
    registration_dir: pathlib.Path | None = None
    health_address: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if not (self.controller or self.node):
            raise SettingsError("nothing to serve: give --controller, --node or both")
        if len(self.driver_name) > _MAX_DRIVER_NAME or not _DRIVER_NAME.fullmatch(self.driver_name):
            raise SettingsError(
                f"--driver-name is {self.driver_name!r}: it has at most {_MAX_DRIVER_NAME} letters, digits,"
                " '.' and '-', and begins and ends with a letter or digit"
            )
        if self.log_level not in LEVELS:
            raise SettingsError(f"--log-level is {self.log_level!r}; known are: {', '.join(LEVELS)}")
        self._check_node_id()
        if self.registration_dir is not None and not self.node:
            raise SettingsError("--registration-dir is for a node plugin: give --node too")
        self._check_folders()
        self._check_numbers()

    def _check_node_id(self) -> None:
        if not self.node_id:
            if self.node:
                raise SettingsError("--node needs --node-id, the name of this node")
            return
        if (
            len(self.node_id.encode()) > _MAX_NODE_ID_BYTES
            or "/" in self.node_id
            or not self.node_id.isprintable()
        ):
            raise SettingsError(
                f"--node-id is {self.node_id!r}: it has at most {_MAX_NODE_ID_BYTES} bytes, no '/' and no"
                " control characters"
            )

    def _check_folders(self) -> None:
        folders = {
            "--run-dir": self.run_dir,
            "--state-dir": self.state_dir,
            "--kubelet-dir": self.kubelet_dir,
            "--keys": self.keys,
            "--registration-dir": self.registration_dir,
        }
        for flag, folder in folders.items():
            if folder is not None and not folder.is_absolute():
                raise SettingsError(f"{flag} is {str(folder)!r}: it must be an absolute path")

    def _check_numbers(self) -> None:
        positive = {
            "--instance-beat": self.periods.beat,
            "--abandon-after": self.periods.abandonment,
            "--recovery-interval": self.periods.recovery,
            "--purge-interval": self.periods.purge,
            "--store-timeout": self.store_timeout,
            "--connect-timeout": self.connect_timeout,
            "--workers": self.workers,
            "--max-calls": self.max_calls,
        }
        for flag, value in positive.items():
            if value <= 0:
                raise SettingsError(f"{flag} is {value:g}: it must be more than 0")
