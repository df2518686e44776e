"""The driver: gRPC services, requests, operations made of stages, images, node mounts, command line."""
