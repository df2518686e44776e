"""The arguments of `waymark`, and settings from them."""

from __future__ import annotations

import argparse
import pathlib
import re

from csi import settings
from csi.settings import Settings
from executor.context import Periods

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_UNIT_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIX = "unix://"
_MAX_PORT = 65535
_MAX_SOCKET_BYTES = 107
"""The kernel's limit for the path of a socket."""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser("waymark", description="A CSI driver for Ceph RBD.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve CSI on a socket"))
    history = commands.add_parser("history", help="print what was asked of a volume and what came of it")
    history.add_argument("volume_id", metavar="VOLUME_ID", help="volumeHandle of the PersistentVolume")
    _add_endpoint(history, "socket of a running driver")
    history.add_argument("--output", choices=("table", "json"), default="table")
    commands.add_parser("points", help="print the points at which WAYMARK_CRASH_AT can end a driver")
    return top


def to_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the arguments of `serve` ask for.  Raises SettingsError."""
    name: str = arguments.driver_name
    return Settings(
        socket=arguments.endpoint,
        run_dir=arguments.run_dir or pathlib.Path("/run") / name,
        state_dir=arguments.state_dir or pathlib.Path("/var/lib") / name,
        controller=arguments.controller,
        node=arguments.node,
        node_id=arguments.node_id,
        driver_name=name,
        config=arguments.config,
        keys=arguments.keys,
        kubelet_dir=arguments.kubelet_dir,
        log_file=arguments.log_file,
        log_level=arguments.log_level,
        periods=Periods(
            beat=arguments.instance_beat,
            abandonment=arguments.abandon_after,
            recovery=arguments.recovery_interval,
            tombstone=arguments.tombstone_ttl,
            trash=arguments.trash_retention,
            purge=arguments.purge_interval,
        ),
        store_timeout=arguments.store_timeout,
        connect_timeout=arguments.connect_timeout,
        workers=arguments.workers,
        max_calls=arguments.max_calls,
        registration_dir=arguments.registration_dir,
        health_address=arguments.health_address,
    )


def duration(text: str) -> float:
    """Seconds from `90`, `90s`, `1.5m`, `2h`, `1d` or `500ms`.  Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 30s, 5m, 2h or 90 (seconds)")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def address(text: str) -> tuple[str, int]:
    """Host and port from `127.0.0.1:9808`, `[::1]:9808` or `:9808`, which has the host "": every address.

    Raises ArgumentTypeError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def endpoint(text: str) -> pathlib.Path:
    """The socket's path from `unix:///path`.  Raises ArgumentTypeError."""
    path = text.removeprefix(_PREFIX)
    if path == text or not path.startswith("/") or "\0" in path:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form unix:///absolute/path")
    size = len(path.encode())
    if size > _MAX_SOCKET_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} has a path of {size} bytes; at most {_MAX_SOCKET_BYTES} fit"
        )
    return pathlib.Path(path)


def _add_endpoint(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--endpoint", required=True, type=endpoint, metavar="unix:///PATH", help=text)


def _add_serve(serve: argparse.ArgumentParser) -> None:
    periods = Periods()
    path = pathlib.Path
    serve.add_argument("--controller", action="store_true", help="serve the Controller service")
    serve.add_argument("--node", action="store_true", help="serve the Node service")
    _add_endpoint(serve, "socket to serve on")
    serve.add_argument("--node-id", default="", metavar="NAME", help="name of this node")
    serve.add_argument("--driver-name", default=settings.DEFAULT_DRIVER_NAME, metavar="NAME")
    serve.add_argument("--config", type=path, default=settings.DEFAULT_CONFIG, help="ceph-csi's config.json")
    serve.add_argument(
        "--keys", type=path, metavar="DIR", help="the driver's own identities, <clusterID>/userID and userKey"
    )
    serve.add_argument(
        "--run-dir", type=path, metavar="DIR", help="keys and maps, on a tmpfs (/run/<driver name>)"
    )
    serve.add_argument(
        "--state-dir", type=path, metavar="DIR", help="lock and node journal (/var/lib/<driver name>)"
    )
    serve.add_argument("--kubelet-dir", type=path, default=settings.DEFAULT_KUBELET_DIR, metavar="DIR")
    serve.add_argument(
        "--registration-dir", type=path, metavar="DIR", help="kubelet's plugins_registry: register there"
    )
    serve.add_argument(
        "--health-address", type=address, metavar="HOST:PORT", help="where /healthz is answered over HTTP"
    )
    serve.add_argument("--log-file", type=path, metavar="FILE", help="instead of standard error")
    serve.add_argument("--log-level", default="info", metavar="LEVEL")
    for flag, seconds, text in (
        ("--instance-beat", periods.beat, "between two signs of life while work is open"),
        ("--abandon-after", periods.abandonment, "until a create that nobody asks for any more is undone"),
        ("--recovery-interval", periods.recovery, "between two scans for unfinished work"),
        ("--tombstone-ttl", periods.tombstone, "that a deleted volume's history is kept"),
        ("--trash-retention", periods.trash, "that a deleted volume's image stays in the trash"),
        ("--purge-interval", periods.purge, "between two looks into the trash"),
        (
            "--store-timeout",
            settings.DEFAULT_STORE_TIMEOUT,
            "for one answer of Ceph to a read or write of a record",
        ),
        ("--connect-timeout", settings.DEFAULT_CONNECT_TIMEOUT, "for connecting to a cluster"),
    ):
        serve.add_argument(
            flag, type=duration, default=seconds, metavar="TIME", help=f"time {text} ({seconds:g}s)"
        )
    serve.add_argument(
        "--workers",
        type=int,
        default=settings.DEFAULT_WORKERS,
        metavar="N",
        help="operations at a time for one cluster",
    )
    serve.add_argument(
        "--max-calls",
        type=int,
        default=settings.DEFAULT_MAX_CALLS,
        metavar="N",
        help="calls served at a time",
    )
