"""`waymark serve`: a driver process, from its start to its end."""

from __future__ import annotations

import importlib.metadata
import secrets
import sys
from collections.abc import Callable

import grpc
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from csi import logs
from csi.admission import Admission
from csi.health import HealthEndpoint
from csi.interceptors import Calls
from csi.metrics import Metrics
from csi.server import Server, StopSignal
from csi.services.controller import Controller
from csi.services.identity import Identity
from csi.services.node import Node
from csi.services.operations import Operations
from csi.services.ports import Driver
from csi.services.registration import THREADS, Registration, socket_path
from csi.settings import Settings, SettingsError
from proto import csi_pb2_grpc, pluginregistration_pb2_grpc, waymark_pb2_grpc

OpenDriver = Callable[[Settings, FilteringBoundLogger], Driver]


def serve(settings: Settings, open_driver: OpenDriver) -> None:
    """Serve until the process is asked to end.  Raises SettingsError, ConfigError, EndpointError at start."""
    stop = StopSignal()
    try:
        stream = logs.open_file(settings.log_file) if settings.log_file else sys.stderr
    except OSError as error:
        raise SettingsError(f"--log-file {settings.log_file} cannot be written: {error.strerror}") from error
    log = logs.to_stream(stream, settings.log_level)
    driver = open_driver(settings, log)
    admission = Admission(settings.max_calls)
    metrics = Metrics(settings.driver_name, CollectorRegistry())
    calls = Calls(log, metrics, admission, request_ids=lambda: secrets.token_hex(8))
    server = Server(
        settings.socket, admission.threads, [calls], lambda server: _register(server, settings, driver)
    )
    health = _health(settings)
    server.start()
    registrar = _registrar(settings, log)
    # After the socket serves: an outage must not keep probes without an answer.
    driver.start()
    log.info("serving", socket=str(settings.socket), driver=settings.driver_name)
    stop.wait()
    log.info("stopping")
    if registrar is not None:
        registrar.stop(lambda: None)
    server.stop(driver.close)
    if health is not None:
        health.close()
    log.info("stopped")


def _health(settings: Settings) -> HealthEndpoint | None:
    """`/healthz`, which answers from now on."""
    if settings.health_address is None:
        return None
    host, port = settings.health_address
    try:
        health = HealthEndpoint(settings.health_address, settings.socket)
    except OSError as error:
        raise SettingsError(f"--health-address {host}:{port} cannot be had: {error.strerror}") from error
    health.start()
    return health


def _registrar(settings: Settings, log: FilteringBoundLogger) -> Server | None:
    """The socket on which kubelet asks who this is; only once the driver itself serves."""
    if settings.registration_dir is None:
        return None
    registration = Registration(settings.driver_name, settings.socket, log)
    registrar = Server(
        socket_path(settings.registration_dir, settings.driver_name),
        THREADS,
        [],
        lambda server: pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registration, server),
    )
    registrar.start()
    return registrar


def _register(server: grpc.Server, settings: Settings, driver: Driver) -> None:
    identity = Identity(
        settings.driver_name, importlib.metadata.version("waymark"), has_controller=settings.controller
    )
    csi_pb2_grpc.add_IdentityServicer_to_server(identity, server)
    waymark_pb2_grpc.add_OperationsServicer_to_server(Operations(driver.records, driver.clock), server)
    if settings.controller:
        csi_pb2_grpc.add_ControllerServicer_to_server(Controller(driver.controller, driver.clock), server)
    if settings.node:
        csi_pb2_grpc.add_NodeServicer_to_server(Node(driver.node, driver.clock, settings.node_id), server)
