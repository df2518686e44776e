"""The driver: gRPC services, request parsing, operations made of stages, image backends, node mounts, command line."""
