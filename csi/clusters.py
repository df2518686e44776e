"""The clusters that the driver serves: `config.json`, as ceph-csi keeps it in a ConfigMap.

    [{"clusterID": "prod",
      "monitors": ["10.0.0.1:6789", "[v2:10.0.0.2:3300/0]"],
      "rbd": {"radosNamespace": "k8s"},
      "journalPool": "rbd-meta",
      "fsid": "2f9e..."}]

`journalPool` (where the names of volumes are kept; else the StorageClass's pool) and `fsid` (a pin: another
cluster behind the same monitors is refused) are Waymark's own; other keys are left alone.  The file is read
again whenever it changes.  A new file that is wrong does not end the service: the last good one stays in
force, and whoever asks for a cluster that only the new file may have is told what is wrong with it.
"""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from executor.errors import PreconditionError


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One entry of `config.json`.

    `namespace` is the RADOS namespace of images and records, "" for the default one.
    """

    cluster_id: str
    monitors: tuple[str, ...]
    namespace: str = ""
    journal_pool: str | None = None
    fsid: str | None = None


class ConfigError(Exception):
    """What is wrong with a `config.json`, naming the file and the entry."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What tells one version of the file from another; a ConfigMap's symlink swap shows as another inode."""

    inode: int
    size: int
    modified_ns: int


class ClusterConfigs:
    """All entries of one `config.json`, current at each look.  Safe for use by many threads."""

    def __init__(
        self, path: pathlib.Path, *, on_broken: Callable[[str], None] = lambda _problem: None
    ) -> None:
        """Read the file.  `on_broken` is told once of each later version that cannot be used.

        Raises ConfigError when the very first version cannot be used.
        """
        self._path = path
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._seen: _Seen | None = None
        try:
            self._seen = _look(path)
            self._configs: Mapping[str, ClusterConfig] = parse(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    def get(self, cluster_id: str) -> ClusterConfig:
        """The entry of a cluster.  Raises PreconditionError naming the file and the clusterIDs in it."""
        configs = self._current()
        config = configs.get(cluster_id)
        if config is not None:
            return config
        known = ", ".join(sorted(configs)) or "none"
        broken = f"; the newest version of the file is not in use: {self._problem}" if self._problem else ""
        raise PreconditionError(
            f"clusterID {cluster_id!r} is not in {self._path} (it has: {known}){broken};"
            f" add an entry with this clusterID and its monitors, the file is read again by itself"
        )

    def all(self) -> tuple[ClusterConfig, ...]:
        """Every entry, ordered by clusterID."""
        return tuple(config for _, config in sorted(self._current().items()))

    def _current(self) -> Mapping[str, ClusterConfig]:
        with self._lock:
            try:
                seen = _look(self._path)
                if seen != self._seen:
                    # Remembered before parsing, so that a broken version is parsed once, not at every call.
                    self._seen = seen
                    self._configs = parse(self._path.read_bytes(), str(self._path))
                    self._problem = None
            except OSError as error:
                self._seen = None
                self._broken(f"{self._path} cannot be read: {error.strerror}")
            except ConfigError as error:
                self._broken(str(error))
            return self._configs

    def _broken(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_broken(problem)


def parse(content: bytes, source: str) -> Mapping[str, ClusterConfig]:
    """The entries of a `config.json` by clusterID.  Raises ConfigError naming `source` and the entry."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise ConfigError(f"{source} holds no JSON list of clusters")
    configs: dict[str, ClusterConfig] = {}
    for number, entry in enumerate(document, start=1):
        if not isinstance(entry, dict):
            raise ConfigError(f"{source}: entry {number} is no JSON object")
        config = _parse_entry(entry, f"{source}: entry {number}")
        if config.cluster_id in configs:
            raise ConfigError(f"{source}: clusterID {config.cluster_id!r} stands in two entries")
        configs[config.cluster_id] = config
    return configs


def _parse_entry(entry: Mapping[str, object], where: str) -> ClusterConfig:
    cluster_id = _text(entry, "clusterID", where)
    if cluster_id is None:
        raise ConfigError(f"{where} has no clusterID")
    where = f"{where} (clusterID {cluster_id!r})"
    monitors = entry.get("monitors")
    if not isinstance(monitors, list) or not monitors:
        raise ConfigError(f"{where} has no list of monitors")
    for monitor in monitors:
        if not isinstance(monitor, str) or not monitor or any(character.isspace() for character in monitor):
            raise ConfigError(f"{where}: monitor {monitor!r} is no address")
    rbd = entry.get("rbd", {})
    if not isinstance(rbd, dict):
        raise ConfigError(f"{where}: rbd is no JSON object")
    return ClusterConfig(
        cluster_id=cluster_id,
        monitors=tuple(monitors),
        namespace=_text(rbd, "radosNamespace", where) or "",
        journal_pool=_text(entry, "journalPool", where),
        fsid=_text(entry, "fsid", where),
    )


def _text(entry: Mapping[str, object], key: str, where: str) -> str | None:
    """The text under a key; an empty one counts as absent, as in ceph-csi's templates."""
    value = entry.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigError(f"{where}: {key} is no printable text")
    return value


def _look(path: pathlib.Path) -> _Seen:
    status = path.stat()
    return _Seen(status.st_ino, status.st_size, status.st_mtime_ns)
